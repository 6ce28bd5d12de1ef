"""Flink SQL on the signed rows of the files: `flink_side.py WORKLOAD INPUT OUTPUT HOW`.

HOW is `batched` (mini-batches of a second, for speed) or `plain` (Flink as it comes: every row is its own step). State
on the heap, checkpoints every second; the output is the file system's, every change as JSON. One small run goes
ahead to warm Java up. Prints one JSON object.
"""

import csv
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

from pyflink.table import EnvironmentSettings, TableEnvironment

workload, given, output, how = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
COLUMNS = {
    "events": "w BIGINT, `number` BIGINT, `key` BIGINT, amount BIGINT",
    "orders": "w BIGINT, `number` BIGINT, customer BIGINT, amount BIGINT",
    "customers": "w BIGINT, `number` BIGINT, region BIGINT",
    "bank": "w BIGINT, tx BIGINT, account BIGINT, balance BIGINT",
}
TABLES = {"keyed": ["events"], "joined": ["orders", "customers"], "bank": ["bank"]}
VIEWS = {
    "keyed": "SELECT `key` AS a, SUM(w * amount) AS b, SUM(w) AS c FROM events WHERE w IS NOT NULL GROUP BY `key`",
    "joined": "SELECT c.region AS a, SUM(o.w * c.w * o.amount) AS b, SUM(o.w * c.w) AS c FROM orders o"
    " JOIN customers c ON o.customer = c.`number` WHERE o.w IS NOT NULL AND c.w IS NOT NULL GROUP BY c.region",
    "bank": "SELECT CAST(0 AS BIGINT) AS a, SUM(w * balance) AS b, MAX(tx) AS c FROM bank WHERE w IS NOT NULL",
}


def run(source, target):
    """Seconds from submission to the end of the job."""
    env = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    options = {
        # The bank's rows are in one order, and a second task would tear what is whole.
        "parallelism.default": "1" if workload == "bank" else "2",
        "state.backend.type": "hashmap",
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.dir": (target / "checkpoints").as_uri(),
        "taskmanager.memory.network.max": "128mb",
    }
    if how == "batched":
        options |= {
            "table.exec.mini-batch.enabled": "true",
            "table.exec.mini-batch.allow-latency": "1 s",
            "table.exec.mini-batch.size": "500000",
        }
    for name, value in options.items():
        env.get_config().set(name, value)
    for table in TABLES[workload]:
        path = (source / table).as_uri()
        # The heading does not parse, and becomes a row of nulls.
        env.execute_sql(
            f"CREATE TABLE {table} ({COLUMNS[table]}) WITH ('connector' = 'filesystem', 'path' = '{path}',"
            " 'format' = 'csv', 'csv.ignore-parse-errors' = 'true')"
        )
    env.execute_sql(
        "CREATE TABLE found (a BIGINT, b BIGINT, c BIGINT) WITH ('connector' = 'filesystem',"
        f" 'path' = '{(target / 'found').as_uri()}', 'format' = 'debezium-json')"
    )
    began = time.perf_counter()
    env.execute_sql(f"INSERT INTO found {VIEWS[workload]}").wait()
    return time.perf_counter() - began


# A file of its own with the first lines of each table.
warm = output / "warm"
for table in TABLES[workload]:
    (warm / table).mkdir(parents=True)
    with next(iter(sorted((given / table).glob("*.csv")))).open() as file:
        (warm / table / "0.csv").write_text("".join(line for _, line in zip(range(1000), file)))
start = run(warm, output / "warm-out")
seconds = run(given, output / "out")

result, shown, changes = {}, [], 0
for path in sorted((output / "out" / "found").rglob("part-*")):
    for line in path.open():
        change = json.loads(line)
        changes += 1
        row, sign = (change["after"], 1) if change["op"] == "c" else (change["before"], -1)
        if workload == "bank" and sign == 1 and row["c"] > 0:
            shown.append(row["b"])
        # By what came and went: the files of two tasks are in no order.
        each = (row["a"], row["b"], row["c"])
        result[each] = result.get(each, 0) + sign
with (output / "result.csv").open("w", newline="") as file:
    csv.writer(file).writerows(each for each, count in result.items() if count)
found = {"seconds": seconds, "start": start, "version": version("apache-flink"), "outputs": changes, "shown": shown}
print(json.dumps(found))
