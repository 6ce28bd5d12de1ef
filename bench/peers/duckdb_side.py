"""DuckDB, which computes the view anew after every step: `duckdb_side.py WORKLOAD INPUT OUTPUT`.

Tables and the view lie in a database file; every step is one transaction that takes its file's rows and replaces the
view. Prints one JSON object. `small` are the seconds of a step of 1,000 rows at two sizes of the table.
"""

import json
import sys
import time
from pathlib import Path

import duckdb

workload, given, output = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
VIEWS = {
    "keyed": "SELECT key, sum(amount)::BIGINT AS total, count(*) AS n FROM events GROUP BY key",
    "joined": "SELECT c.region, sum(o.amount)::BIGINT AS total, count(*) AS n"
    " FROM orders o JOIN customers c ON o.customer = c.number GROUP BY c.region",
    "bank": "SELECT sum(balance)::BIGINT AS total, max(tx) AS tx FROM bank",
}
KEYS = {"events": "number", "orders": "number", "customers": "number", "bank": "account"}
TABLES = {"keyed": ["events"], "joined": ["customers", "orders"], "bank": ["bank"]}
AT_ONCE = 100  # Transfers in a step of the bank: one file holds them all.

db = duckdb.connect(str(output / "duckdb.db"))
db.execute("SET threads = 2")


def take(table, source):
    """Apply signed rows: those that go are deleted by key, then those that come are inserted."""
    key = KEYS[table]
    db.execute(f"CREATE OR REPLACE TEMP TABLE step AS SELECT * FROM {source}")
    db.execute(f"DELETE FROM {table} WHERE {key} IN (SELECT {key} FROM step WHERE w = -1)")
    # In a step of the bank an account may come more than once, and its last balance stays.
    last = " QUALIFY row_number() OVER (PARTITION BY account ORDER BY tx DESC) = 1" if table == "bank" else ""
    db.execute(f"INSERT INTO {table} SELECT * EXCLUDE (w) FROM step WHERE w = 1{last}")


def recompute():
    db.execute(f"CREATE OR REPLACE TABLE view AS {VIEWS[workload]}")


def step(sources):
    began = time.perf_counter()
    db.execute("BEGIN")
    for table, source in sources:
        take(table, source)
    recompute()
    db.execute("COMMIT")
    return time.perf_counter() - began


def csv(path):
    return f"read_csv('{path}')"


def small(number):
    """A step of 1,000 rows that come, at the present size of the table."""
    table, columns = "events", "1 AS w, -1 - i - {n} AS number, i AS key, 1 AS amount"
    if workload == "joined":
        table, columns = "orders", "1 AS w, -1 - i - {n} AS number, i AS customer, 1 AS amount"
    rows = db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    times = []
    for turn in range(3):
        source = "(SELECT " + columns.format(n=(number * 3 + turn) * 1000) + " FROM range(1000) t(i))"
        times.append(step([(table, source)]))
    db.execute(f"DELETE FROM {table} WHERE number < 0")
    return [rows, sorted(times)[1]]


files = {table: sorted((given / table).glob("*.csv")) for table in TABLES[workload]}
for table in TABLES[workload]:
    db.execute(f"CREATE TABLE {table} AS SELECT * EXCLUDE (w) FROM {csv(files[table][0])} LIMIT 0")
found = {}
seconds = 0.0
if workload == "bank":
    began = time.perf_counter()
    db.execute(f"CREATE TEMP TABLE every AS SELECT * FROM {csv(files['bank'][0])}")
    last = db.execute("SELECT max(tx) FROM every").fetchone()[0]
    shown = []
    for first in range(0, last + 1, AT_ONCE):
        step([("bank", f"(SELECT * FROM every WHERE tx BETWEEN {first} AND {first + AT_ONCE - 1})")])
        shown.append(db.execute("SELECT total FROM view").fetchone()[0])
    seconds = time.perf_counter() - began
    found = {"shown": shown}
else:
    measured = []
    for number in range(max(len(paths) for paths in files.values())):
        seconds += step([(table, csv(paths[number])) for table, paths in files.items() if number < len(paths)])
        if number in (len(files[TABLES[workload][-1]]) // 4, len(files[TABLES[workload][-1]]) - 1):
            measured.append(small(number))
    recompute()
    db.execute(f"COPY view TO '{output / 'result.csv'}' (HEADER false)")
    found = {"small": measured}
db.close()
print(json.dumps({"seconds": seconds, "version": duckdb.__version__, **found}))
