-- The queries of query_corpus.sql that only Spark answers.
SELECT big * big FROM nums
SELECT CAST(d AS STRING) FROM nums
SELECT NULL + 1, NULL * 1.5
SELECT id FROM nums WHERE i
SELECT upper('straße'), lower('ÀÉ')
SELECT format_string('%d-%s', 1, 'a')
SELECT hash(1), xxhash64('a')
SELECT levenshtein('kitten', 'sitting')
SELECT soundex('Robert')
SELECT 'a' 'b'
SELECT trim(BOTH 'x' FROM 'xax')
SELECT 'foobar' RLIKE 'foo(?=bar)'
SELECT regexp_replace('abc', 'x*', '-')
SELECT regexp_extract_all('a1b2', '([0-9])')
SELECT d - DATE '2020-01-01' FROM days
SELECT next_day(d, 'Monday') FROM days
SELECT ts - ts FROM days
SELECT from_unixtime(0)
SELECT INTERVAL 1 DAY
SELECT array_contains(a, 1), array_contains(a, 99), array_contains(a, NULL) FROM nest
SELECT array()
SELECT aggregate(a, 0, (acc, x) -> acc + x) FROM nest WHERE id = 1
SELECT array_union(a, array(9)) FROM nest
SELECT arrays_zip(a, w) FROM nest
SELECT map_entries(m) FROM nest
SELECT to_json(st) FROM nest
SELECT get_json_object('{"a": 1.50}', '$.a')
SELECT approx_count_distinct(customer) FROM orders
SELECT sum(s) FROM words
SELECT mode(qty) FROM orders
SELECT id, sum(qty) OVER (PARTITION BY qty % id) FROM orders ORDER BY id
SELECT id, sum(qty) OVER (ORDER BY qty RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) AS s FROM orders ORDER BY id
SELECT id, count(DISTINCT qty) OVER () FROM orders
SELECT 1 UNION SELECT 'a'
SELECT 1, 2 UNION SELECT 1
WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t WHERE n < 3) SELECT * FROM t
SELECT id FROM nums SORT BY id
SELECT id FROM nums TABLESAMPLE (100 PERCENT)
SELECT rand(1) > 2
SELECT * FROM (SELECT customer, qty FROM orders) PIVOT (sum(qty) FOR customer IN ('ann', 'bob'))
SELECT stack(2, 1, 'a', 2, 'b')
SELECT from_json('{"a": 1}', 'a INT')
SELECT /*+ BROADCAST(customers) */ count(*) FROM customers
SELECT schema_of_json('{"a": 1}')
SELECT bround(2.5)
SELECT big * big * big FROM nums
SELECT customer, max(amount) AS amount FROM orders GROUP BY customer ORDER BY max(amount)
SELECT -(5), - 5, +5, 3 - -2, NOT true, !false
SELECT n + INTERVAL 1 DAY FROM days
SELECT n = ts, n > d FROM days
SELECT date_trunc('DAY', n) FROM days
SELECT id FROM nums WHERE i > ALL (SELECT qty FROM orders)
SELECT date_format(d, 'D') FROM days
SELECT i > 99999999999999999999.5 FROM nums
SELECT CAST(1.5F AS DOUBLE)
SELECT lower('İ')
SELECT count(*) FROM days GROUP BY window(ts, '1 month')
SELECT d, window_time(window) FROM (SELECT d, window(ts, '1 hour') AS window FROM days)
SELECT window, sum(id) AS s FROM days GROUP BY ROLLUP (window(ts, '1 day'))
SELECT count(*) AS n FROM orders WHERE id < 0 GROUP BY GROUPING SETS (())
SELECT customer, sum(qty) AS s FROM orders GROUP BY customer QUALIFY rank() OVER (ORDER BY s DESC) <= 2 ORDER BY s
SELECT ts + INTERVAL 1 HOUR 30 MINUTES FROM days
SELECT session_window(ts, '1 hour') AS w, id FROM days
SELECT st IN (SELECT st FROM nest) FROM nest
SELECT max(struct(amount, id)) FROM orders
