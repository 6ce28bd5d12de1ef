"""The queries of Nexmark as Spark SQL over tables `person`, `auction` and `bid`; event time is `date_time`.

Left out: q12 (windows of processing time) and q13 (a join with a file beside the stream), which no query of tables
says. q101 to q106 are the six that RisingWave adds. Where rows could tie in an order that cuts them, keys decide. q102
has an answer without bids, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_COUNTS: Final = """
  SELECT auction, count(*) AS num, window.start AS starttime, window.end AS endtime
  FROM bid
  GROUP BY auction, window(date_time, '10 seconds', '2 seconds')"""
_BID_COLUMNS: Final = "auction, bidder, price, channel, url, date_time, extra"
_WINNING: Final = """
  SELECT a.id, a.seller, a.category, a.item_name, a.expires, b.id AS bid_id, b.bidder, b.price, b.date_time,
         row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time, b.id) AS place
  FROM auction a JOIN bid b ON a.id = b.auction
  WHERE b.date_time BETWEEN a.date_time AND a.expires"""
_RANKS: Final = "\n".join(
    f"""       count(*) FILTER (WHERE {condition}) AS rank{number}_bids,"""
    for number, condition in enumerate(
        ("price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000"), start=1
    )
)


def _distinct(column: str) -> str:
    return f"""       count(DISTINCT {column}) AS total_{column}s,
       count(DISTINCT {column}) FILTER (WHERE price < 10000) AS rank1_{column}s,
       count(DISTINCT {column}) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_{column}s,
       count(DISTINCT {column}) FILTER (WHERE price >= 1000000) AS rank3_{column}s"""


QUERIES: Final[Mapping[str, str]] = {
    "q0": f"SELECT id, {_BID_COLUMNS} FROM bid",
    "q1": "SELECT id, auction, bidder, 0.908 * price AS price, date_time, extra FROM bid",
    "q2": "SELECT id, auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """
SELECT p.name, p.city, p.state, a.id
FROM auction a JOIN person p ON a.seller = p.id
WHERE a.category = 10 AND (p.state = 'OR' OR p.state = 'ID' OR p.state = 'CA')
""",
    "q4": """
SELECT category, avg(final) AS average
FROM (
  SELECT a.id, a.category, max(b.price) AS final
  FROM auction a, bid b
  WHERE a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
  GROUP BY a.id, a.category) AS closed
GROUP BY category
""",
    "q5": f"""
WITH counts AS ({_COUNTS})
SELECT c.auction, c.num, c.starttime, c.endtime
FROM counts c JOIN (
  SELECT max(num) AS most, starttime, endtime FROM counts GROUP BY starttime, endtime) AS m
  ON c.starttime = m.starttime AND c.endtime = m.endtime AND c.num >= m.most
""",
    "q6": f"""
SELECT id, seller,
       avg(price) OVER (PARTITION BY seller ORDER BY date_time, id ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) AS average
FROM ({_WINNING}) AS won
WHERE place = 1
""",
    "q7": """
SELECT b.auction, b.price, b.bidder, b.date_time, b.extra
FROM bid b JOIN (
  SELECT max(price) AS most, window.end AS endtime FROM bid GROUP BY window(date_time, '10 seconds')) AS m
  ON b.price = m.most AND b.date_time >= m.endtime - INTERVAL 10 SECONDS AND b.date_time < m.endtime
""",
    "q8": """
SELECT p.id, p.name, p.starttime
FROM (
  SELECT id, name, window.start AS starttime, window.end AS endtime
  FROM person GROUP BY id, name, window(date_time, '10 seconds')) AS p
JOIN (
  SELECT seller, window.start AS starttime, window.end AS endtime
  FROM auction GROUP BY seller, window(date_time, '10 seconds')) AS a
  ON p.id = a.seller AND p.starttime = a.starttime AND p.endtime = a.endtime
""",
    "q9": f"SELECT id, item_name, seller, category, expires, bid_id, bidder, price, date_time"
    f"\nFROM ({_WINNING}) AS won WHERE place = 1",
    "q10": "SELECT id, auction, bidder, price, date_time, extra, date_format(date_time, 'yyyy-MM-dd') AS day,"
    " date_format(date_time, 'HH:mm') AS minute FROM bid",
    "q11": """
SELECT bidder, count(*) AS bid_count, session_window.start AS starttime, session_window.end AS endtime
FROM bid
GROUP BY bidder, session_window(date_time, '10 seconds')
""",
    "q14": """
SELECT id, auction, bidder, 0.908 * price AS price,
       CASE WHEN hour(date_time) >= 8 AND hour(date_time) <= 18 THEN 'dayTime'
            WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime'
            ELSE 'otherTime' END AS bid_time_type,
       date_time, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts
FROM bid
WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000
""",
    "q15": f"""
SELECT date_format(date_time, 'yyyy-MM-dd') AS day,
       count(*) AS total_bids,
{_RANKS}
{_distinct("bidder")},
{_distinct("auction")}
FROM bid
GROUP BY date_format(date_time, 'yyyy-MM-dd')
""",
    "q16": f"""
SELECT channel,
       date_format(date_time, 'yyyy-MM-dd') AS day,
       max(date_format(date_time, 'HH:mm')) AS minute,
       count(*) AS total_bids,
{_RANKS}
{_distinct("bidder")},
{_distinct("auction")}
FROM bid
GROUP BY channel, date_format(date_time, 'yyyy-MM-dd')
""",
    "q17": f"""
SELECT auction,
       date_format(date_time, 'yyyy-MM-dd') AS day,
       count(*) AS total_bids,
{_RANKS}
       min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price
FROM bid
GROUP BY auction, date_format(date_time, 'yyyy-MM-dd')
""",
    "q18": f"""
SELECT id, {_BID_COLUMNS}
FROM (
  SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC, id DESC) AS place
  FROM bid) AS ranked
WHERE place <= 1
""",
    "q19": f"""
SELECT id, {_BID_COLUMNS}, place
FROM (
  SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, id) AS place
  FROM bid) AS ranked
WHERE place <= 10
""",
    "q20": """
SELECT b.id, b.auction, b.bidder, b.price, b.channel, b.url, b.date_time AS bid_time, a.item_name, a.description,
       a.initial_bid, a.reserve, a.date_time AS auction_time, a.expires, a.seller, a.category
FROM bid b JOIN auction a ON b.auction = a.id
WHERE a.category = 10
""",
    "q21": """
SELECT id, auction, bidder, price, channel,
       CASE WHEN lower(channel) = 'apple' THEN '0'
            WHEN lower(channel) = 'google' THEN '1'
            WHEN lower(channel) = 'facebook' THEN '2'
            WHEN lower(channel) = 'baidu' THEN '3'
            ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id
FROM bid
WHERE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) <> ''
   OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')
""",
    "q22": """
SELECT id, auction, bidder, price, channel,
       split(url, '/')[3] AS dir1, split(url, '/')[4] AS dir2, split(url, '/')[5] AS dir3
FROM bid
""",
    "q101": """
SELECT a.id AS auction_id, a.item_name AS auction_item_name, b.max_price AS current_highest_bid
FROM auction a LEFT OUTER JOIN (
  SELECT auction, max(price) AS max_price FROM bid GROUP BY auction) AS b ON a.id = b.auction
""",
    "q102": """
SELECT a.id AS auction_id, a.item_name AS auction_item_name, count(b.auction) AS bid_count
FROM auction a JOIN bid b ON a.id = b.auction
GROUP BY a.id, a.item_name
HAVING count(b.auction) >= (SELECT count(*) / nullif(count(DISTINCT auction), 0) FROM bid)
""",
    "q103": """
SELECT a.id AS auction_id, a.item_name AS auction_item_name
FROM auction a
WHERE a.id IN (SELECT b.auction FROM bid b GROUP BY b.auction HAVING count(*) >= 20)
""",
    "q104": """
SELECT a.id AS auction_id, a.item_name AS auction_item_name
FROM auction a
WHERE a.id NOT IN (SELECT b.auction FROM bid b GROUP BY b.auction HAVING count(*) < 20)
""",
    "q105": """
SELECT a.id AS auction_id, a.item_name AS auction_item_name, count(b.auction) AS bid_count
FROM auction a JOIN bid b ON a.id = b.auction
GROUP BY a.id, a.item_name
ORDER BY bid_count DESC, auction_id
LIMIT 100
""",
    "q106": """
SELECT min(final) AS min_final
FROM (
  SELECT a.id, max(b.price) AS final
  FROM auction a, bid b
  WHERE a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
  GROUP BY a.id) AS closed
""",
}
