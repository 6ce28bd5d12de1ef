"""Pathway on the signed rows of the files: `pathway_side.py WORKLOAD INPUT OUTPUT HOW`.

HOW is `steps` (its own CSV reader in one thread, which takes file after file), `rows` (a Python source that commits
after every file), `batch` (its own reader in two threads, which takes all files at once: not incremental), `timer` or
`transfers` (the bank: commits by a timer of 100 ms, or after every transfer by the feeder).
The output is Pathway's CSV writer's: every change, with its time. Prints one JSON object.
"""

import csv
import json
import os
import sys
import time
from pathlib import Path

workload, given, output, how = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
# A second thread makes a Python source slower.
os.environ["PATHWAY_THREADS"] = "2" if how == "batch" else "1"

import pathway as pw  # noqa: E402
import pyarrow.csv  # noqa: E402

COLUMNS = {
    "events": ["w", "number", "key", "amount"],
    "orders": ["w", "number", "customer", "amount"],
    "customers": ["w", "number", "region"],
    "bank": ["w", "tx", "account", "balance"],
}


class Source(pw.io.python.ConnectorSubject):
    """The files of one table, row by row."""

    _deletions_enabled = False

    def __init__(self, table):
        super().__init__()
        self.table = table

    def run(self):
        for path in sorted((given / self.table).glob("*.csv")):
            last = 0
            # Faster than Python's own csv, so that what is slow is not ours.
            for row in pyarrow.csv.read_csv(path).to_pylist():
                if how == "transfers" and row["tx"] != last:
                    self.commit()
                    last = row["tx"]
                self.next(**row)
            if how == "rows":
                self.commit()


def read(table):
    schema = pw.schema_from_types(**dict.fromkeys(COLUMNS[table], int))
    if how in ("steps", "batch"):
        return pw.io.csv.read(given / table, schema=schema, mode="static")
    autocommit = 100 if how == "timer" else None
    return pw.io.python.read(Source(table), schema=schema, autocommit_duration_ms=autocommit)


if workload == "keyed":
    events = read("events")
    found = events.groupby(events.key).reduce(
        group=events.key, total=pw.reducers.sum(events.w * events.amount), n=pw.reducers.sum(events.w)
    )
elif workload == "joined":
    orders, customers = read("orders"), read("customers")
    lines = orders.join(customers, orders.customer == customers.number).select(
        region=customers.region, amount=orders.amount, w=orders.w * customers.w
    )
    found = lines.groupby(lines.region).reduce(
        group=lines.region, total=pw.reducers.sum(lines.w * lines.amount), n=pw.reducers.sum(lines.w)
    )
else:
    bank = read("bank")
    found = bank.reduce(total=pw.reducers.sum(bank.w * bank.balance), tx=pw.reducers.max(bank.tx))
pw.io.csv.write(found, output / "changes.csv")
began = time.perf_counter()
pw.run(monitoring_level=pw.MonitoringLevel.NONE)
seconds = time.perf_counter() - began

result, shown, times = {}, [], set()
with (output / "changes.csv").open(newline="") as file:
    for row in csv.DictReader(file):
        times.add(row["time"])
        if workload == "bank":
            if row["diff"] == "1" and int(row["tx"]) > 0:
                shown.append(int(row["total"]))
        elif row["diff"] == "1":
            result[row["group"]] = (row["time"], row["total"], row["n"])
        elif row["group"] in result and result[row["group"]][0] != row["time"]:
            # Within one time the row that goes may be written after the one that comes.
            del result[row["group"]]
with (output / "result.csv").open("w", newline="") as file:
    csv.writer(file).writerows([group, total, n] for group, (_, total, n) in result.items())
print(json.dumps({"seconds": seconds, "version": pw.__version__, "outputs": len(times), "shown": shown}))
