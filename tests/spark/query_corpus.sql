-- Queries that Spark and the translation to DuckDB must answer alike; one a line. Tables: query_tables.py.

-- literals
SELECT 1, -1, 2147483647, 2147483648, -2147483648, 9223372036854775807
SELECT 99999999999999999999, 1.5, 0.05, 1.50, .5, -0.25, 100.
SELECT 1e3, 1.5e-7, 1e10, -2.5E0
SELECT 1L, 1S, 1Y, 2.5BD, 1D
SELECT 'a', "b", 'it\'s', 'tab\there', 'back\\slash', r'raw\d'
SELECT true, false, NULL
SELECT DATE '2020-02-29', TIMESTAMP '2020-02-29 12:34:56.789'
SELECT 1 AS x, 2 AS `y z`, 'q' AS X2
SELECT 'it''s'
SELECT NULL AS n, CAST(NULL AS INT) AS i
SELECT X'1F', X'00ff', X'' = X''

-- columns and names
SELECT * FROM nums
SELECT ID, nums.I FROM nums
SELECT n.id, n.* FROM nums AS n WHERE n.id = 1
SELECT * EXCEPT (id, f) FROM nums
SELECT id AS a, a + 1 AS b, b * 2 AS c FROM nums
SELECT id + 1, id - 1, id * 2, -id FROM nums
SELECT id, id FROM nums
SELECT x.`count(1)` FROM (SELECT count(*) FROM nums) x
SELECT (id + 1) * 2 FROM nums
SELECT t + s, s + i, i + l, t * 2 FROM nums WHERE id > 3
SELECT nope FROM nums

-- integers
SELECT id, t + t FROM nums WHERE id > 3
SELECT t + t FROM nums
SELECT i + 1 FROM nums
SELECT l - 1 FROM nums
SELECT i * i FROM nums WHERE id > 3
SELECT l * l FROM nums WHERE id < 3
SELECT -i FROM nums
SELECT abs(t) FROM nums
SELECT abs(i), abs(l) FROM nums WHERE id > 2
SELECT 7 div 2, -7 div 2, 7 % 3, -7 % 3, 7 % -3
SELECT i div 3, i % 7 FROM nums
SELECT id div 0 FROM nums
SELECT id % 0 FROM nums
SELECT pmod(-7, 3), pmod(7, 3)
SELECT 5 & 3, 5 | 3, 5 ^ 3
SELECT s & 255, i | 1 FROM nums
SELECT CAST(1 AS TINYINT) + CAST(127 AS TINYINT)
SELECT 2147483647 + 1
SELECT 9223372036854775807 + 1
SELECT CAST(5 AS SMALLINT) / CAST(2 AS SMALLINT)
SELECT i / 2, l / 3 FROM nums

-- division
SELECT 7 / 2, 1 / 3, -1 / 3
SELECT 1 / 0
SELECT i / 0 FROM nums
SELECT NULL / 0, 0 / NULL
SELECT d / 0 FROM nums
SELECT d / 2, 1 / d FROM nums WHERE id = 1
SELECT 1.5 / 0.5, 1.0 / 3.0, 2.00 / 3
SELECT dec / 3, dec / 1.5 FROM nums
SELECT dec / 0 FROM nums
SELECT dec / i FROM nums WHERE id = 1
SELECT try_divide(1, 0), try_divide(6, 4)
SELECT sum(i) / count(*) FROM nums WHERE id > 2
SELECT id / NULL FROM nums
SELECT 5 % 2.5, dec % 2 FROM nums

-- decimals
SELECT dec + 1, dec - 0.5, dec * 2, dec * 1.25 FROM nums
SELECT dec + dec, dec * dec, dec - big FROM nums
SELECT dec + i FROM nums
SELECT dec + d, dec * 1e0 FROM nums
SELECT big * big FROM nums
SELECT -dec, abs(dec) FROM nums
SELECT round(dec), round(dec, 1), round(dec, 3) FROM nums
SELECT ceil(dec), floor(dec), ceil(big) FROM nums
SELECT dec = 1, dec > 0.5, dec < i, dec = 1.50 FROM nums
SELECT CAST(dec AS INT), CAST(dec AS DOUBLE), CAST(dec AS STRING) FROM nums
SELECT CAST(0.05 AS STRING), CAST(CAST(0 AS DECIMAL(20, 10)) AS STRING)
SELECT CAST(1.005 AS DECIMAL(10, 2)), CAST(-1.005 AS DECIMAL(10, 2)), CAST(2.5 AS DECIMAL(5, 0))
SELECT CAST(123456 AS DECIMAL(4, 1))
SELECT CAST('12.345' AS DECIMAL(10, 2)), CAST(1.005D AS DECIMAL(10, 2))
SELECT sum(dec), avg(dec), min(dec), max(dec) FROM nums
SELECT sum(big), avg(big) FROM nums
SELECT sum(dec * 2) / sum(dec) FROM nums
SELECT coalesce(dec, 0), coalesce(dec, 0.0) FROM nums
SELECT greatest(dec, 1), least(dec, i) FROM nums
SELECT if(id > 2, dec, 1.125) FROM nums
SELECT 0.1 + 0.2, 0.1 + 0.2 = 0.3, 1.1 * 1.1

-- doubles
SELECT d, d + 1, d * 2, -d FROM nums
SELECT f, f + f, f + 1, f * d FROM nums
SELECT d = d, d > 1, d < 'NaN' FROM nums
SELECT isnan(d), nanvl(d, 0) FROM nums
SELECT id FROM nums ORDER BY d, id
SELECT id FROM nums ORDER BY d DESC, id
SELECT round(2.5), round(-2.5), round(2.675D, 2), round(1.005D, 2), round(-0.5D)
SELECT round(d), round(d, 1) FROM nums WHERE NOT isnan(d)
SELECT ceil(d), floor(d) FROM nums WHERE id IN (1, 2, 3)
SELECT ceil(-0.5D), floor(-0.5D), ceil(2), floor(1.7)
SELECT sqrt(4), sqrt(-1), power(2, 10), pow(2, 0.5)
SELECT ln(1), ln(0), ln(-1), log10(1000), log2(8), exp(0)
SELECT sign(-3), sign(0), signum(2.5)
SELECT d, count(*) FROM nums GROUP BY d ORDER BY d
SELECT DISTINCT d FROM nums ORDER BY d
SELECT max(d), min(d) FROM nums
SELECT greatest(d, 0), least(d, 0) FROM nums
SELECT a.id, b.id FROM nums a JOIN nums b ON a.d = b.d ORDER BY 1, 2
SELECT CAST(d AS STRING) FROM nums
SELECT pi(), sin(0), cos(0)
SELECT 0.0D = -0.0D, -0.0D < 0.0D

-- nulls
SELECT id, i IS NULL, i IS NOT NULL, i <=> NULL FROM nums
SELECT NULL = NULL, NULL <=> NULL, NULL AND false, NULL OR true, NOT NULL
SELECT 1 IN (1, NULL), 2 IN (1, NULL), 2 NOT IN (1, NULL), NULL IN (1)
SELECT id FROM nums WHERE i NOT IN (1, NULL)
SELECT id FROM nums WHERE i NOT IN (SELECT i FROM nums)
SELECT coalesce(NULL, i, 7), nvl(i, 0), ifnull(i, -1), nvl2(i, 1, 0) FROM nums
SELECT nullif(i, 1), nullif(1, 1), nullif(1, NULL) FROM nums
SELECT concat('a', NULL), 'a' || NULL, concat_ws('-', 'a', NULL, 'b')
SELECT greatest(1, NULL, 3), least(NULL, 2)
SELECT count(*), count(i), count(NULL), sum(i), max(i) FROM nums WHERE i IS NULL
SELECT isnull(i), isnotnull(i) FROM nums
SELECT i IS DISTINCT FROM 1, i IS NOT DISTINCT FROM 1 FROM nums
SELECT NULL + 1, NULL * 1.5

-- conditions
SELECT if(i > 0, 'yes', 'no') FROM nums
SELECT CASE WHEN i > 0 THEN 1 WHEN i < 0 THEN -1 ELSE 0 END FROM nums
SELECT CASE i WHEN 1 THEN 'one' WHEN 2 THEN 'two' END FROM nums
SELECT CASE WHEN i > 0 THEN 1 ELSE 2.5 END FROM nums
SELECT CASE WHEN i > 0 THEN 1L ELSE i END AS c FROM nums
SELECT id FROM nums WHERE i BETWEEN 0 AND 5 OR d > 1
SELECT i BETWEEN 0 AND 5 FROM nums
SELECT NOT (i > 0 AND d < 1) FROM nums
SELECT i > 0 AND d < 1, i = 0 OR i != 1 FROM nums
SELECT i IN (1, 2, 3), s IN ('1', 'a') FROM nums
SELECT id FROM nums WHERE id = '3'
SELECT id FROM nums WHERE id IN (1, 2L)
SELECT i > 0 IS TRUE, (i > 0) IS FALSE FROM nums
SELECT decode(i, 1, 'one', 'other') FROM nums
SELECT id FROM nums WHERE i
SELECT id FROM nums WHERE i <> 0 AND 10 / i > 1
SELECT 'a' = 'A', 'a' < 'B', 'a' < 'b', 'é' > 'z', '' < 'a'

-- casts
SELECT CAST(1.9D AS INT), CAST(-1.9D AS INT), CAST(1.5 AS INT), CAST(-1.5 AS BIGINT)
SELECT CAST(' 12 ' AS INT), CAST('+5' AS INT), CAST('-7' AS BIGINT)
SELECT CAST('1.5' AS INT)
SELECT CAST('abc' AS INT)
SELECT CAST('' AS INT)
SELECT CAST('1e3' AS INT)
SELECT CAST('99999999999' AS INT)
SELECT CAST(300 AS TINYINT)
SELECT CAST(1e20 AS BIGINT)
SELECT CAST('1.5' AS DOUBLE), CAST('1e3' AS DOUBLE), CAST(' 2 ' AS DOUBLE)
SELECT CAST('x' AS DOUBLE)
SELECT CAST('true' AS BOOLEAN), CAST('N' AS BOOLEAN), CAST(' 1 ' AS BOOLEAN)
SELECT CAST('maybe' AS BOOLEAN)
SELECT CAST(0 AS BOOLEAN), CAST(5 AS BOOLEAN), CAST(true AS INT)
SELECT CAST(i AS STRING), CAST(l AS STRING), CAST(i > 0 AS STRING) FROM nums
SELECT CAST('2020-02-30' AS DATE)
SELECT CAST('2020-2-9' AS DATE), CAST('2020' AS DATE), CAST('2020-03' AS DATE), CAST('2020-01-01 10:00:00' AS DATE)
SELECT CAST('2020-01-01 10:11:12' AS TIMESTAMP), CAST('2020-01-01T10:11:12.5' AS TIMESTAMP), CAST('2020-01-01' AS TIMESTAMP)
SELECT CAST(d AS STRING), CAST(ts AS STRING), CAST(n AS STRING) FROM days
SELECT CAST(ts AS DATE), CAST(d AS TIMESTAMP), CAST(ts AS BIGINT) FROM days
SELECT CAST(0 AS TIMESTAMP), CAST(-1 AS TIMESTAMP)
SELECT CAST(i AS BIGINT), CAST(s AS DOUBLE), CAST(l AS DECIMAL(20, 0)) FROM nums
SELECT i::STRING, '5'::INT, id::BIGINT FROM nums
SELECT try_cast('abc' AS INT), try_cast('5' AS INT), try_cast('x' AS DATE), try_cast(300 AS TINYINT)
SELECT CAST('abc' AS BINARY)
SELECT CAST(array(1, 2) AS ARRAY<BIGINT>)
SELECT int('5'), string(5), double(1)

-- strings
SELECT length(s), char_length(s), upper(s), lower(s) FROM words
SELECT substring(s, 1, 2), substring(s, 0, 2), substring(s, -2, 2), substring(s, 2) FROM words
SELECT substring('hello', -10, 7), substring('hello', 10, 2), substring('hello', 2, -1), substr('hello', 2, 100)
SELECT left(s, 2), right(s, 2), left(s, -1), right(s, 0) FROM words
SELECT trim('  a '), ltrim('  a '), rtrim('  a '), trim(s) FROM words
SELECT concat(s, '!', id), s || p FROM words
SELECT concat_ws(',', s, p) FROM words
SELECT lpad(s, 4, '*'), rpad(s, 4, '-+'), lpad('abc', 2, 'x'), lpad('a', 3) FROM words
SELECT replace(s, 'a', 'b'), replace('aaa', 'a', ''), replace('abc', 'b') FROM words
SELECT repeat('ab', 3), repeat('ab', 0), repeat('ab', -1)
SELECT instr(s, 'l'), instr('abc', 'z'), locate('b', 'abc'), position('c', 'abc') FROM words
SELECT reverse('hello'), reverse('')
SELECT startswith(s, 'h'), endswith(s, 'o'), contains(s, 'l') FROM words
SELECT initcap('hello world'), initcap('HELLO')
SELECT translate('abcabc', 'ab', 'x')
SELECT md5('a'), sha2('a', 256)
SELECT s LIKE 'h%', s LIKE '_ello', s NOT LIKE '%o', s LIKE '' FROM words
SELECT 'a%b' LIKE 'a\%b', 'axb' LIKE 'a\%b', 'a_b' LIKE 'a\\_b'
SELECT s ILIKE 'H%' FROM words WHERE id < 4
SELECT upper('straße'), lower('ÀÉ')
SELECT upper('éàü'), lower('ÉÀÜ'), length('日本語'), substring('日本語', 2, 1)
SELECT ascii('A'), octet_length('é')
SELECT split_part('a.b.c', '.', 2), split_part('a', '.', 3)
SELECT s FROM words ORDER BY s
SELECT s FROM words ORDER BY s DESC
SELECT s = 'hello', s > 'a', s < p FROM words
SELECT min(s), max(s), count(DISTINCT s) FROM words
SELECT format_string('%d-%s', 1, 'a')
SELECT hash(1), xxhash64('a')
SELECT levenshtein('kitten', 'sitting')
SELECT soundex('Robert')
SELECT 'a' 'b'
SELECT trim(BOTH 'x' FROM 'xax')
SELECT char(65), chr(322), chr(-1), length(chr(256)), chr(NULL), ucase('a'), lcase('B')

-- regular expressions
SELECT s RLIKE '^h.*o$', s RLIKE 'l+', regexp_like(s, '[A-Z]') FROM words
SELECT regexp_replace(s, '[aeiou]', '*'), regexp_replace('a1b22', '[0-9]+', '#') FROM words
SELECT regexp_replace('john smith', '(\\w+) (\\w+)', '$2 $1')
SELECT regexp_extract('a-12-b', '([a-z])-(\\d+)', 2), regexp_extract('a-12', '(\\d+)', 1), regexp_extract('abc', '(\\d+)')
SELECT regexp_extract('foo123', '\\d+', 0)
SELECT split('a,b,,c,', ','), split('a1b2', '[0-9]'), split('', ','), split('a.b', '\\.')
SELECT regexp_count('banana', 'an'), regexp_count('aaa', 'b')
SELECT 'line\nbreak' RLIKE 'e.b', 'a b\tc' RLIKE 'a\\sb\\sc'
SELECT 'abc' RLIKE '(?i)ABC'
SELECT 'foobar' RLIKE 'foo(?=bar)'
SELECT regexp_replace('abc', 'x*', '-')
SELECT regexp_extract_all('a1b2', '([0-9])')

-- dates
SELECT year(d), month(d), day(d), dayofmonth(d), quarter(d) FROM days
SELECT dayofweek(d), weekday(d), dayofyear(d), weekofyear(d) FROM days
SELECT date_add(d, 1), date_sub(d, 1), d + 5, d - 5 FROM days
SELECT datediff(d, DATE '2020-01-01'), datediff('2020-03-01', '2020-02-01') FROM days
SELECT add_months(d, 1), add_months(d, -1), add_months(DATE '2020-01-31', 1), add_months(DATE '2020-02-29', 12) FROM days
SELECT last_day(d), trunc(d, 'MM'), trunc(d, 'year'), trunc(d, 'WEEK'), trunc(d, 'quarter') FROM days
SELECT months_between(DATE '2020-03-31', DATE '2020-02-29'), months_between(DATE '2020-03-15', DATE '2020-01-31')
SELECT months_between(ts, TIMESTAMP '2019-12-25 10:00:00') FROM days
SELECT date_format(d, 'yyyy-MM-dd'), date_format(ts, 'yyyy/MM/dd HH:mm:ss'), date_format(d, 'EEE, d MMM yy') FROM days
SELECT date_format(ts, "yyyy-MM-dd'T'HH:mm"), date_format(ts, 'hh:mm a'), date_format(ts, 'EEEE MMMM') FROM days
SELECT to_date('2020-02-29'), to_date('29/02/2020', 'dd/MM/yyyy'), to_timestamp('2020-02-29 01:02:03')
SELECT to_date('2020-02-30', 'yyyy-MM-dd')
SELECT to_timestamp('20200229 010203', 'yyyyMMdd HHmmss')
SELECT make_date(2020, 2, 29), make_date(2020, 1, NULL)
SELECT make_date(2020, 2, 30)
SELECT d = '2020-02-29', d > '2019-12-31', d < TIMESTAMP '2020-06-01 00:00:00' FROM days
SELECT id FROM days WHERE d BETWEEN '2020-01-01' AND '2020-12-31'
SELECT d + INTERVAL 1 DAY, d - INTERVAL 1 MONTH, d + INTERVAL '2' YEAR FROM days
SELECT d + INTERVAL 1 WEEK FROM days
SELECT d + INTERVAL 3 HOURS FROM days
SELECT DATE '2020-01-31' + INTERVAL 1 MONTH, DATE '2020-03-31' - INTERVAL 1 MONTH
SELECT extract(YEAR FROM d), extract(MONTH FROM d), extract(DOW FROM d), extract(WEEK FROM d) FROM days
SELECT date_part('year', d), date_part('doy', d) FROM days
SELECT min(d), max(d), count(DISTINCT d) FROM days
SELECT d - DATE '2020-01-01' FROM days
SELECT DATE '2020-13-01'
SELECT d, count(*) FROM days GROUP BY d ORDER BY d
SELECT next_day(d, 'Monday') FROM days
SELECT date(ts) FROM days
SELECT current_date() = current_date, current_timestamp() >= TIMESTAMP '2020-01-01 00:00:00' AS c

-- timestamps
SELECT hour(ts), minute(ts), second(ts), year(ts), day(ts) FROM days
SELECT date_trunc('HOUR', ts), date_trunc('day', ts), date_trunc('MONTH', ts), date_trunc('week', ts) FROM days
SELECT date_trunc('YEAR', d) FROM days
SELECT unix_timestamp(ts), unix_seconds(ts), unix_millis(ts), unix_micros(ts) FROM days
SELECT timestamp_seconds(0), timestamp_millis(1500), timestamp_micros(-1)
SELECT ts + INTERVAL 1 HOUR, ts - INTERVAL 90 MINUTES, ts + INTERVAL 1 DAY, ts + INTERVAL 1 MONTH FROM days
SELECT INTERVAL 1 DAY + ts FROM days
SELECT ts = TIMESTAMP '2020-02-29 12:34:56.789', ts > '2020-01-01', ts > d FROM days
SELECT extract(HOUR FROM ts), extract(SECOND FROM ts), extract(MINUTE FROM ts) FROM days
SELECT n, hour(n), CAST(n AS DATE) FROM days
SELECT ts - ts FROM days
SELECT max(ts), min(n) FROM days
SELECT from_unixtime(0)
SELECT ts FROM days ORDER BY ts DESC
SELECT date_format(ts, 'SSS'), date_format(ts, 'yyyyMMddHHmmss') FROM days
SELECT CAST(ts AS DOUBLE) FROM days
SELECT INTERVAL 1 DAY

-- arrays
SELECT a, size(a), cardinality(w) FROM nest
SELECT a[0] FROM nest WHERE size(a) > 0
SELECT a[5] FROM nest
SELECT element_at(a, 1), element_at(a, -1) FROM nest WHERE size(a) > 0
SELECT element_at(a, 9) FROM nest
SELECT get(a, 0), get(a, 9), get(a, -1) FROM nest
SELECT array_contains(a, 1), array_contains(a, 99), array_contains(a, NULL) FROM nest
SELECT array(1, 2, 3), array('a', NULL), array(1, 2.5), array(1, 2L)
SELECT array()
SELECT sort_array(a), sort_array(a, false), array_sort(a) FROM nest
SELECT array_distinct(a), array_max(a), array_min(a) FROM nest
SELECT array_join(w, ','), array_join(w, ',', '?') FROM nest
SELECT slice(a, 1, 2), slice(a, 2, 5) FROM nest
SELECT concat(a, array(7)), concat(a, a) FROM nest
SELECT flatten(array(array(1, 2), array(3)))
SELECT array_position(a, 1), array_remove(a, 1), array_append(a, 5) FROM nest
SELECT sequence(1, 5), sequence(5, 1), sequence(1, 1)
SELECT reverse(a) FROM nest
SELECT transform(a, x -> x + 1), filter(a, x -> x > 1) FROM nest
SELECT exists(a, x -> x > 2), forall(a, x -> x > 0) FROM nest
SELECT transform(a, x -> x * id) FROM nest
SELECT aggregate(a, 0, (acc, x) -> acc + x) FROM nest WHERE id = 1
SELECT id, explode(a) FROM nest
SELECT id, explode(a) AS e FROM nest ORDER BY id, e
SELECT id, explode_outer(a) AS e FROM nest ORDER BY id, e
SELECT id, posexplode(a) FROM nest
SELECT id, e FROM nest LATERAL VIEW explode(a) v AS e ORDER BY id, e
SELECT id, e FROM nest LATERAL VIEW OUTER explode(a) v AS e ORDER BY id, e
SELECT id, p, v.e FROM nest LATERAL VIEW posexplode(w) v AS p, e
SELECT e, count(*) FROM nest LATERAL VIEW explode(a) v AS e GROUP BY e ORDER BY e
SELECT x, y FROM nest LATERAL VIEW explode(a) AS x LATERAL VIEW explode(w) AS y
SELECT explode(array(1, 2, 3))
SELECT explode(split('a,b', ',')) AS part
SELECT a = array(1, 2) FROM nest
SELECT array_union(a, array(9)) FROM nest
SELECT arrays_zip(a, w) FROM nest
SELECT a[id] FROM nest WHERE id = 1
SELECT collect_list(e) FROM (SELECT explode(a) AS e FROM nest)

-- maps and structs
SELECT m, m['k'], m['absent'] FROM nest
SELECT map_keys(m), map_values(m), size(m) FROM nest
SELECT element_at(m, 'k'), map_contains_key(m, 'k') FROM nest
SELECT map('a', 1, 'b', 2), map(1, 'x')
SELECT map('a', 1, 'a', 2)
SELECT map_from_arrays(array('a', 'b'), array(1, 2))
SELECT st, st.x, st.y FROM nest
SELECT nest.st.x + 1, upper(st.y) FROM nest
SELECT named_struct('a', 1, 'b', 'x'), struct(1, 'a'), struct(id, id + 1 AS b) FROM nest
SELECT named_struct('a', 1).a
SELECT id FROM nest WHERE st.x > 1
SELECT id, k, v FROM nest LATERAL VIEW explode(m) t AS k, v ORDER BY id, k
SELECT id, explode(m) FROM nest
SELECT st.x, count(*) FROM nest GROUP BY st.x ORDER BY 1
SELECT st['y'] FROM nest
SELECT map_entries(m) FROM nest
SELECT to_json(st) FROM nest
SELECT get_json_object('{"a": {"b": 1}, "c": "x", "d": null}', '$.a.b'), get_json_object('{"c": "x"}', '$.c'), get_json_object('{"c": "x"}', '$.z')
SELECT get_json_object('{"a": 1.50}', '$.a')

-- aggregates
SELECT count(*), count(1), count(i), count(DISTINCT i), count(DISTINCT i, s) FROM nums
SELECT sum(t), sum(s), sum(i), sum(d), sum(f) FROM nums WHERE id IN (1, 2, 3)
SELECT sum(l) FROM nums
SELECT sum(i), avg(i), avg(l), mean(s) FROM nums
SELECT min(i), max(i), min(s), max(s) FROM nums
SELECT sum(DISTINCT i), avg(DISTINCT i) FROM nums
SELECT customer, sum(amount), avg(amount), count(*) FROM orders GROUP BY customer ORDER BY customer
SELECT customer, sum(qty) AS n FROM orders GROUP BY customer HAVING sum(qty) > 3 ORDER BY n DESC, customer
SELECT customer, sum(qty) AS n FROM orders GROUP BY customer HAVING n > 3 ORDER BY customer
SELECT upper(customer) AS u, count(*) FROM orders GROUP BY u ORDER BY u
SELECT upper(customer), count(*) FROM orders GROUP BY 1 ORDER BY 1
SELECT customer, day, count(*) FROM orders GROUP BY ALL ORDER BY customer, day
SELECT year(day) AS y, month(day) AS m, sum(amount * qty) FROM orders GROUP BY y, m ORDER BY y, m
SELECT count(*) FROM orders WHERE false
SELECT sum(qty), avg(qty), max(day), collect_list(qty) FROM orders WHERE false
SELECT customer, count(*) FROM orders WHERE false GROUP BY customer
SELECT sum(qty) FILTER (WHERE amount > 10), count(*) FILTER (WHERE customer = 'ann') FROM orders
SELECT count_if(qty > 2), bool_and(qty > 0), bool_or(qty > 4), every(qty > 0), some(qty > 9), any(qty > 1) FROM orders
SELECT max_by(id, amount), min_by(id, amount) FROM orders
SELECT customer, sort_array(collect_list(qty)), sort_array(collect_set(qty)) FROM orders GROUP BY customer ORDER BY customer
SELECT collect_list(i) FROM nums
SELECT array_agg(id) FROM nums
SELECT sum(amount) / sum(qty), round(avg(amount), 2) FROM orders
SELECT max(qty) - min(qty) FROM orders
SELECT count(DISTINCT customer), count(DISTINCT day) FROM orders
SELECT customer FROM orders GROUP BY customer ORDER BY sum(qty) DESC, customer
SELECT sum(qty + 1), sum(qty) + 1, sum(-qty) FROM orders
SELECT count(DISTINCT d) FROM nums
SELECT first(id) FROM orders WHERE id = 3
SELECT any_value(customer) FROM orders WHERE id = 1
SELECT customer, day FROM orders GROUP BY customer
SELECT approx_count_distinct(customer) FROM orders
SELECT grouping(customer), count(*) FROM orders GROUP BY CUBE (customer)
SELECT sum(s) FROM words
SELECT customer, count(*) AS c FROM orders GROUP BY customer HAVING count(*) > 1 AND max(qty) > 2 ORDER BY c, customer
SELECT sum(CASE WHEN qty > 2 THEN 1 ELSE 0 END), sum(if(qty > 2, amount, 0)) FROM orders
SELECT count(*) + 1, count(*) * 1.0 / 3 FROM orders
SELECT i % 2 AS p, count(*) FROM nums GROUP BY i % 2 ORDER BY p
SELECT median(qty), percentile(qty, 0.25), percentile(qty, 0.5) FROM orders
SELECT mode(qty) FROM orders

-- statistics
SELECT stddev(qty), stddev_samp(qty), stddev_pop(qty), variance(qty), var_samp(qty), var_pop(qty), std(qty) FROM orders
SELECT stddev(qty), stddev_pop(qty) FROM orders WHERE id = 1
SELECT covar_pop(qty, id), covar_samp(qty, id) FROM orders
SELECT avg(d), sum(d) FROM nums WHERE id < 4
SELECT exp(1), ln(10), log10(2), power(1.1, 10), sin(1), cos(1), tan(1), atan(1), degrees(1), radians(90)
SELECT corr(qty, id) FROM orders
SELECT corr(qty, id), corr(1, id) FROM orders
SELECT customer, corr(qty, id) AS c FROM orders GROUP BY customer
SELECT corr(d, i), corr(id, i) FROM nums
SELECT corr(qty, id) FROM orders WHERE id < 0
SELECT customer, stddev(qty), var_pop(qty), stddev_pop(amount) FROM orders GROUP BY customer HAVING count(*) > 1 ORDER BY customer

-- windows
SELECT id, row_number() OVER (ORDER BY id) FROM orders ORDER BY id
SELECT id, row_number() OVER (PARTITION BY customer ORDER BY amount DESC, id) AS r FROM orders ORDER BY id
SELECT id, rank() OVER (ORDER BY qty), dense_rank() OVER (ORDER BY qty) FROM orders ORDER BY id
SELECT id, percent_rank() OVER (ORDER BY qty), cume_dist() OVER (ORDER BY qty), ntile(3) OVER (ORDER BY id) FROM orders ORDER BY id
SELECT id, sum(qty) OVER (PARTITION BY customer) FROM orders ORDER BY id
SELECT id, sum(qty) OVER (PARTITION BY id % 3 ORDER BY id / 2, id) FROM orders ORDER BY id
SELECT id, sum(qty) OVER (PARTITION BY qty % id) FROM orders ORDER BY id
SELECT id, id % 4, id / 4, qty % 2.5 FROM orders ORDER BY id
SELECT id, sum(qty) OVER (PARTITION BY customer ORDER BY id) AS running FROM orders ORDER BY id
SELECT id, sum(qty) OVER (ORDER BY qty) FROM orders ORDER BY id
SELECT id, sum(qty) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM orders ORDER BY id
SELECT id, avg(amount) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS a FROM orders ORDER BY id
SELECT id, lag(qty) OVER (ORDER BY id), lead(qty) OVER (ORDER BY id) FROM orders ORDER BY id
SELECT id, lag(qty, 2) OVER (ORDER BY id) AS l2, lag(qty, 1, 0) OVER (ORDER BY id) AS l1 FROM orders ORDER BY id
SELECT id, first_value(qty) OVER (PARTITION BY customer ORDER BY id) AS f, last_value(qty) OVER (PARTITION BY customer ORDER BY id) AS l FROM orders ORDER BY id
SELECT id, count(*) OVER () FROM orders ORDER BY id
SELECT id, max(amount) OVER (PARTITION BY day ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS m FROM orders ORDER BY id
SELECT * FROM (SELECT id, row_number() OVER (PARTITION BY customer ORDER BY id DESC) AS r FROM orders) WHERE r = 1 ORDER BY id
SELECT id, sum(qty) OVER w, count(*) OVER w FROM orders WINDOW w AS (PARTITION BY customer ORDER BY id) ORDER BY id
SELECT customer, sum(qty), rank() OVER (ORDER BY sum(qty) DESC) AS r FROM orders GROUP BY customer ORDER BY r, customer
SELECT id, row_number() OVER (ORDER BY i, id) AS r FROM nums ORDER BY id
SELECT id, row_number() OVER (ORDER BY i DESC NULLS FIRST, id) AS r FROM nums ORDER BY id
SELECT id, count(d) OVER (PARTITION BY d) AS c FROM nums ORDER BY id
SELECT id, amount / sum(amount) OVER () AS share FROM orders ORDER BY id
SELECT id, sum(qty) OVER (ORDER BY qty RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) AS s FROM orders ORDER BY id
SELECT id, count(DISTINCT qty) OVER () FROM orders
SELECT id, nth_value(qty, 2) OVER (ORDER BY id) AS n FROM orders ORDER BY id
SELECT id, last_value(qty) IGNORE NULLS OVER (ORDER BY id) AS n FROM orders ORDER BY id

-- joins
SELECT o.id, c.city FROM orders o JOIN customers c ON o.customer = c.name ORDER BY o.id
SELECT o.id, c.city FROM orders o LEFT JOIN customers c ON o.customer = c.name ORDER BY o.id
SELECT o.id, c.name FROM orders o RIGHT JOIN customers c ON o.customer = c.name ORDER BY c.name, o.id
SELECT o.id, c.name FROM orders o FULL OUTER JOIN customers c ON o.customer = c.name ORDER BY c.name, o.id
SELECT count(*) FROM orders CROSS JOIN customers
SELECT count(*) FROM orders, customers WHERE customer = name
SELECT id FROM orders o LEFT SEMI JOIN customers c ON o.customer = c.name ORDER BY id
SELECT id FROM orders o LEFT ANTI JOIN customers c ON o.customer = c.name ORDER BY id
SELECT * FROM orders JOIN (SELECT id, 'x' AS tag FROM nums) USING (id) ORDER BY id
SELECT * FROM (SELECT id FROM orders) a FULL JOIN (SELECT id, i FROM nums) b USING (id) ORDER BY id
SELECT id, a.qty FROM orders a LEFT JOIN nums b USING (id) ORDER BY id
SELECT a.id, b.id FROM orders a JOIN orders b ON a.customer = b.customer AND a.id < b.id ORDER BY 1, 2
SELECT a.id FROM nums a JOIN nums b ON a.i = b.l ORDER BY a.id
SELECT a.id FROM nums a JOIN nums b ON a.i <=> b.i ORDER BY a.id, b.id
SELECT * FROM customers a JOIN customers b ON a.city = b.city AND a.name < b.name
SELECT id FROM orders JOIN nums ON orders.id = nums.id
SELECT o.id, c.city, n.i FROM orders o JOIN customers c ON o.customer = c.name LEFT JOIN nums n ON n.id = o.id ORDER BY o.id
SELECT id, e FROM nest JOIN customers ON true LATERAL VIEW explode(a) v AS e WHERE name = 'ann' ORDER BY id, e
SELECT * FROM nums NATURAL JOIN orders

-- set operations
SELECT id FROM nums UNION SELECT id FROM orders ORDER BY id
SELECT id FROM nums UNION ALL SELECT id FROM orders ORDER BY id
SELECT i FROM nums INTERSECT SELECT qty FROM orders ORDER BY i
SELECT id FROM orders EXCEPT SELECT id FROM nums ORDER BY id
SELECT id FROM orders MINUS SELECT id FROM nums ORDER BY 1
SELECT customer FROM orders EXCEPT ALL SELECT name FROM customers ORDER BY customer
SELECT customer FROM orders INTERSECT ALL SELECT name FROM customers ORDER BY customer
SELECT 1 AS x UNION ALL SELECT 2.5 UNION ALL SELECT NULL ORDER BY x
SELECT id, 'n' AS src FROM nums UNION ALL SELECT id, 'o' FROM orders ORDER BY id, src LIMIT 5
SELECT d FROM nums UNION SELECT 0.0D ORDER BY d
SELECT 1 UNION SELECT 'a'
(SELECT id FROM nums ORDER BY id LIMIT 2) UNION ALL (SELECT id FROM orders ORDER BY id DESC LIMIT 2)
SELECT 1, 2 UNION SELECT 1
SELECT CAST(NULL AS INT) AS a UNION SELECT NULL
SELECT id FROM nums UNION SELECT l FROM nums WHERE id > 4 ORDER BY id

-- subqueries and CTEs
SELECT id FROM orders WHERE customer IN (SELECT name FROM customers WHERE city = 'Oslo') ORDER BY id
SELECT id FROM orders o WHERE EXISTS (SELECT 1 FROM customers c WHERE c.name = o.customer) ORDER BY id
SELECT id FROM orders o WHERE NOT EXISTS (SELECT 1 FROM customers c WHERE c.name = o.customer) ORDER BY id
SELECT id, (SELECT max(qty) FROM orders) AS m FROM orders ORDER BY id
SELECT (SELECT count(*) FROM nums)
SELECT id, (SELECT count(*) FROM orders b WHERE b.customer = a.customer) AS n FROM orders a ORDER BY id
SELECT id FROM orders WHERE amount > (SELECT avg(amount) FROM orders) ORDER BY id
SELECT (SELECT id FROM nums)
SELECT (SELECT id FROM nums WHERE false)
WITH big AS (SELECT * FROM orders WHERE qty > 2) SELECT customer, count(*) FROM big GROUP BY customer ORDER BY customer
WITH orders AS (SELECT id FROM orders WHERE id < 3) SELECT * FROM orders ORDER BY id
WITH a AS (SELECT id FROM nums), b AS (SELECT id + 1 AS id FROM a) SELECT a.id FROM a JOIN b ON a.id = b.id ORDER BY a.id
WITH t(x, y) AS (SELECT id, qty FROM orders) SELECT sum(x), max(y) FROM t
SELECT * FROM (SELECT customer AS c, sum(qty) AS n FROM orders GROUP BY customer) t WHERE t.n > 2 ORDER BY c
SELECT * FROM VALUES (1, 'a'), (2, NULL) AS t(x, y) ORDER BY x
SELECT col1, col2 FROM (VALUES (1, 2.5), (2, 3))
VALUES (1, 'a'), (2, 'b')
SELECT * FROM range(3)
SELECT id * 2 FROM range(1, 4)
TABLE customers
WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t WHERE n < 3) SELECT * FROM t
SELECT id FROM orders WHERE (customer, qty) IN (SELECT name, 1 FROM customers)
SELECT id FROM orders WHERE id NOT IN (SELECT id FROM nums WHERE id IS NOT NULL) ORDER BY id

-- ordering
SELECT id, i FROM nums ORDER BY i, id
SELECT id, i FROM nums ORDER BY i DESC, id
SELECT id, i FROM nums ORDER BY i ASC NULLS LAST, id DESC
SELECT id, i FROM nums ORDER BY i DESC NULLS FIRST, id
SELECT id FROM nums ORDER BY id LIMIT 2
SELECT id FROM nums ORDER BY id LIMIT 2 OFFSET 1
SELECT id FROM nums ORDER BY id DESC LIMIT 0
SELECT id AS i, i AS id2 FROM nums ORDER BY i
SELECT id + 1 AS x FROM nums ORDER BY x DESC
SELECT id FROM nums ORDER BY -id
SELECT id FROM nums ORDER BY i * 2 DESC, id
SELECT DISTINCT customer FROM orders ORDER BY customer
SELECT DISTINCT customer, qty FROM orders ORDER BY 2, 1
SELECT DISTINCT i FROM nums ORDER BY i DESC
SELECT customer FROM orders ORDER BY amount DESC, id LIMIT 3
SELECT d, id FROM nums ORDER BY d DESC NULLS FIRST, id
SELECT id FROM days ORDER BY ts, id
SELECT id FROM nums LIMIT 0
SELECT id FROM nums SORT BY id
SELECT nums.id AS n FROM nums ORDER BY nums.id DESC
SELECT i > 0 AS b, id FROM nums ORDER BY b, id

-- left to Spark
SELECT id FROM nums TABLESAMPLE (100 PERCENT)
SELECT rand(1) > 2
SELECT * FROM (SELECT customer, qty FROM orders) PIVOT (sum(qty) FOR customer IN ('ann', 'bob'))
SELECT stack(2, 1, 'a', 2, 'b')
SELECT from_json('{"a": 1}', 'a INT')
SELECT /*+ BROADCAST(customers) */ count(*) FROM customers
SELECT schema_of_json('{"a": 1}')
SELECT bround(2.5)

-- more of what is common
SELECT s NOT LIKE 'h%', s NOT RLIKE 'l', NOT s LIKE 'x', s NOT ILIKE 'H%' FROM words WHERE id < 4
SELECT id NOT BETWEEN 2 AND 3, id NOT IN (1, 2) FROM nums
SELECT 'a%' LIKE 'a/%' ESCAPE '/'
SELECT sum(amount) / sum(qty), sum(amount) / count(*), sum(amount) * sum(amount) FROM orders
SELECT sum(amount) + sum(qty), sum(amount) - 1, sum(amount) * 1.1 FROM orders
SELECT big * big * big FROM nums
SELECT avg(amount) * 2, avg(amount) + 1, avg(amount) / 7 FROM orders
SELECT amount * qty * 1.25, amount / qty FROM orders
SELECT CAST(amount AS DECIMAL(38, 2)) + 1, CAST(amount AS DECIMAL(38, 10)) * 2 FROM orders
SELECT d - INTERVAL 1 DAY, ts - INTERVAL 5 MINUTES, ts + INTERVAL 30 SECONDS, ts - INTERVAL '1' YEAR FROM days
SELECT lag(qty, 2) OVER (ORDER BY id), lead(qty, 1, 0) OVER (ORDER BY id) FROM orders
SELECT first_value(qty) OVER (ORDER BY id), nth_value(qty, 2) OVER (ORDER BY id) FROM orders
SELECT sum(qty) FILTER (WHERE id > 2) OVER (PARTITION BY customer ORDER BY id) FROM orders
SELECT EXISTS (SELECT 1 FROM nums WHERE id > 100), (SELECT max(id) FROM nums) + 1
SELECT id IN (SELECT id FROM orders) FROM nums ORDER BY id
SELECT d + 1 AS e, count(*) FROM nums GROUP BY d ORDER BY e
SELECT d, sum(d) FROM nums GROUP BY d HAVING d > 0 ORDER BY d
SELECT sum(d), avg(f), max(f) FROM nums
SELECT max(amount) AS amount FROM orders ORDER BY amount
SELECT customer, max(amount) AS amount FROM orders GROUP BY customer ORDER BY max(amount)
SELECT id AS qty FROM orders WHERE qty > 3 ORDER BY qty
SELECT qty AS id, count(*) FROM orders GROUP BY id ORDER BY 1, 2
SELECT * FROM (SELECT id, qty FROM orders) a JOIN (SELECT id, i FROM nums) b USING (id) JOIN (SELECT id, s FROM words) c USING (id) ORDER BY id
SELECT a.*, b.i FROM orders a JOIN nums b ON a.id = b.id ORDER BY a.id
SELECT count(*) FROM orders o, customers c, nums n WHERE o.customer = c.name AND n.id = o.id
SELECT c.name, count(o.id) AS n, coalesce(sum(o.amount), 0) AS total FROM customers c LEFT JOIN orders o ON o.customer = c.name GROUP BY c.name ORDER BY c.name
SELECT mod(7, 3), try_add(2147483647, 1), try_subtract(1, 2), try_multiply(2, 3)
SELECT 1 = 1.0, 1 = '1', 1.5 > 1, 2 > 1L, 1.0 = 1D, l = d FROM nums
SELECT datediff(ts, d), date_add(ts, 1), year('2020-05-06'), month(ts) FROM days
SELECT if(id > 1, if(id > 2, 'a', 'b'), 'c'), if(id > 1, 1, 2.5D) FROM nums
SELECT named_struct('a', named_struct('b', id)) AS s, named_struct('x', 1).x FROM nums
SELECT s.a.b + 1, s.a FROM (SELECT named_struct('a', named_struct('b', id)) AS s FROM nums)
SELECT CAST(st.x AS STRING), CAST(nest.id AS BIGINT), CAST(id + 1 AS STRING), int(id), string(id + 1), date('2020-01-01') FROM nest
SELECT '🙂', length('🙂a'), upper('🙂a'), substring('🙂ab', 2, 1), reverse('ab')
SELECT concat('a', 1, true, 2.50, DATE '2020-01-01'), concat_ws('-', 1, 2)
SELECT id, sum(id) OVER (ORDER BY id DESC), avg(i) OVER (PARTITION BY id) FROM nums WHERE id > 2
SELECT DISTINCT customer, count(*) OVER (PARTITION BY customer) AS n FROM orders ORDER BY customer
SELECT count(DISTINCT customer) FILTER (WHERE qty > 1), count(customer, day) FROM orders
SELECT upper(customer) FROM orders GROUP BY upper(customer) ORDER BY upper(customer)
SELECT date_trunc('MONTH', day) AS m, sum(amount) FROM orders GROUP BY date_trunc('MONTH', day) ORDER BY m
SELECT day, sum(amount) AS total, sum(sum(amount)) OVER (ORDER BY day) AS running FROM orders GROUP BY day ORDER BY day
SELECT customer, collect_list(named_struct('q', qty)) FROM orders WHERE id < 3 GROUP BY customer ORDER BY customer
SELECT explode(a) AS e FROM nest WHERE id = 1 ORDER BY e DESC
SELECT id, e FROM nest LATERAL VIEW explode(a) v AS e WHERE e > 1 ORDER BY e
SELECT transform(w, x -> upper(x)), filter(w, x -> x IS NOT NULL AND x <> '') FROM nest
SELECT size(filter(a, x -> x > 1)), a[0] + 1 FROM nest WHERE id = 1
SELECT CASE WHEN d > 1 THEN 'big' WHEN d IS NULL THEN 'none' ELSE 'small' END AS size, count(*) FROM nums GROUP BY 1 ORDER BY 1
SELECT nvl(customer, 'nobody') AS who, sum(qty) FROM orders GROUP BY who ORDER BY who
SELECT id FROM nums WHERE d IN (0.0, 2.5) ORDER BY id
SELECT id FROM words WHERE s IN ('hello', '') ORDER BY id
SELECT id FROM days WHERE d >= DATE '2020-01-01' AND ts < '2022-01-01' ORDER BY id
SELECT * FROM orders WHERE customer = 'ann' AND NOT (qty = 4 OR amount < 5) ORDER BY id
SELECT -(5), - 5, +5, 3 - -2, NOT true, !false
SELECT 10 / 4 * 2, 2 + 3 * 4, (2 + 3) * 4, 7 - 2 - 1
SELECT true AND NULL, 1 < 2 = true, 'a' IS NULL
SELECT CAST(f AS DOUBLE), CAST(d AS FLOAT), CAST(i AS FLOAT) FROM nums WHERE id > 2
SELECT min(f), max(f), f + 1.5, f / 2 FROM nums WHERE id = 1 GROUP BY f
SELECT f, count(*) FROM nums GROUP BY f ORDER BY f
SELECT n + INTERVAL 1 DAY FROM days
SELECT n = ts, n > d FROM days
SELECT date_trunc('DAY', n) FROM days
SELECT id FROM orders ORDER BY day DESC NULLS LAST, amount LIMIT 3
SELECT decode(qty, 1, 'one', 4, 'four') FROM orders ORDER BY id
SELECT id FROM nums n WHERE (SELECT count(*) FROM orders o WHERE o.id = n.id) > 0 ORDER BY id
SELECT id FROM nums WHERE i > ALL (SELECT qty FROM orders)
SELECT a.id, b.e FROM nest a JOIN (SELECT id, explode(w) AS e FROM nest) b ON a.id = b.id ORDER BY a.id, b.e
WITH a AS (SELECT 1 AS x), a2 AS (SELECT x + 1 AS y FROM a) SELECT * FROM a, a2
SELECT * FROM (SELECT 1 AS a UNION SELECT 2) x, (SELECT 'q' AS b) y ORDER BY a
SELECT s, p FROM words WHERE p IS NULL OR s > p ORDER BY s, p
SELECT sum(id) s, max(id) AS `max` FROM nums
SELECT round(12.345, 2), round(-12.345, 2), round(15, 0), round(1.5E0), round(0.5), round(-1.5)
SELECT floor(-1.5), ceil(-1.5), floor(5), ceiling(1.1)
SELECT 'a' || 1 || NULL, 'x' || 1.50
SELECT date_format(d, 'D') FROM days
SELECT percentile(amount, 0.9), median(amount) FROM orders
SELECT max(st.x), min(st.y) FROM nest
SELECT bool_and(i > 0), count_if(d > 1) FROM nums
SELECT split(s, 'l')[0] FROM words WHERE id = 1
SELECT id FROM nums WHERE isnan(d) OR isnull(i) ORDER BY id
SELECT last_day('2021-02-03'), add_months('2021-01-31', 1)
SELECT to_date(CAST(NULL AS STRING)), CAST(NULL AS DATE) + 1
SELECT count(*) FROM range(10) WHERE id % 2 = 0
SELECT r.id, n.i FROM range(3) r LEFT JOIN nums n ON r.id = n.id ORDER BY r.id
SELECT i > 1.5, i >= 1.5, i < 1.5, i <= 1.5, 1.5 > i, 1.5 >= i, 1.5 < i, 1.5 <= i, i = 1.5, i > 2.0 FROM nums
SELECT i > 99999999999999999999.5 FROM nums
SELECT percentile(qty, 0.33), percentile(amount, 0.77), median(d) FROM orders JOIN nums USING (id)
SELECT median(qty) OVER (PARTITION BY customer) AS m FROM orders
SELECT 'a_b' LIKE 'a!_b' ESCAPE '!', 'axb' LIKE 'a!_b' ESCAPE '!'
SELECT TIMESTAMP '2020-01-01 00:00:00' + INTERVAL 1 SECOND, ts - INTERVAL 100 DAYS FROM days
SELECT s || p || 'x' FROM words
SELECT DISTINCT f FROM nums
SELECT count(*) FROM nums a JOIN nums b ON a.i > b.i AND a.s = b.s
SELECT a.id FROM orders a LEFT JOIN orders b ON a.id = b.id + 1 WHERE b.id IS NULL ORDER BY a.id
SELECT id, qty, qty > avg(qty) OVER () AS above FROM orders ORDER BY id
SELECT customer AS c, count(*) AS n FROM orders WHERE customer IS NOT NULL GROUP BY c HAVING n >= 2 ORDER BY n DESC, c LIMIT 1
SELECT sum(l) OVER (ORDER BY id) FROM nums WHERE id > 2
SELECT CAST('NaN' AS DOUBLE), CAST('inf' AS DOUBLE), CAST('-Infinity' AS DOUBLE)
SELECT CAST(d AS INT) FROM nums WHERE isnan(d)
SELECT CAST(d AS DECIMAL(10, 1)) FROM nums WHERE id < 5
SELECT CAST(ts AS TIMESTAMP_NTZ), CAST(n AS TIMESTAMP) FROM days
SELECT max(s) FILTER (WHERE id < 3) FROM words
SELECT hour('2020-01-01 10:11:12'), date_add('2020-01-01', 1)
SELECT upper(trim(substring(s, 1, 3))), count(*) FROM words GROUP BY upper(trim(substring(s, 1, 3))) ORDER BY 1
SELECT upper(lower(upper(trim(s)))) AS u, count(*) FROM words GROUP BY u HAVING count(*) > 0 ORDER BY u
SELECT amount / qty / 3 / 2, (amount / 7) * (amount / 3), qty / 2 / 3 / 4 / 5 FROM orders
SELECT substring(substring(substring(s, 1, 4), 1, 3), 2, 2), regexp_replace(upper(trim(s)), '[AEIOU]$', '') FROM words
SELECT sum(amount / qty), avg(amount / qty), max(CAST(CAST(qty AS STRING) AS INT) + 1) FROM orders
SELECT year(date_add(to_date('2020-01-01'), qty)), date_format(date_add(day, qty), 'yyyy-MM') FROM orders
SELECT transform(a, x -> abs(x + 1) / 2), transform(w, x -> upper(trim(x))) FROM nest
SELECT qty % 2 / 1, sum(qty) / 2 OVER () FROM orders
SELECT sum(qty) OVER () / 2 % 3 AS r, round(avg(d) OVER () / 3, 2) AS q FROM orders JOIN (SELECT id, i / 2 AS d FROM nums) USING (id)
SELECT (SELECT max(amount) FROM orders) / 3 / 2
SELECT ascii(''), instr('abc', ''), locate('', 'abc'), split(',a', ','), 'a\nb' LIKE 'a%b', concat_ws(NULL, 'a', 'b')
SELECT (i > 0) = 'true', d IN (1, 2.5), f > 1.5, f = 0.5, d % 2 FROM nums
SELECT d IN ('2020-02-29', '1969-12-31'), ts IN ('2019-12-30'), d <=> NULL FROM days
SELECT * FROM range(5, 0, -2)
SELECT sequence(1, CAST(NULL AS INT)), slice(array(1, 2), 3, 1), array_join(array('a', NULL), '')
SELECT translate('abc', 'ab', 'xyz'), initcap('a-b c'), lpad('é', 3, 'ab'), rpad('abc', -1, 'x')
SELECT sort_array(collect_set(d)) FROM nums
SELECT sum(i + 0L), sum(CAST(i AS DOUBLE)), avg(CAST(i AS DECIMAL(12, 3))) FROM nums
SELECT round(dec / 3, 2), round(big / 7, 3), ceil(dec / 3), CAST(dec / 3 AS DECIMAL(10, 1)) FROM nums
SELECT nullif('a', 'a'), nvl2(NULL, 'x', 'y'), coalesce(NULL, NULL), if(NULL, 1, 2)
SELECT date_trunc('QUARTER', ts), date_trunc('minute', ts), trunc(ts, 'MM'), last_day(ts) FROM days
SELECT count(*) FROM nums WHERE i IN (SELECT qty FROM orders WHERE false)
SELECT a.id, b.n FROM orders a JOIN (SELECT customer, count(*) AS n FROM orders GROUP BY customer) b ON a.customer <=> b.customer ORDER BY a.id
SELECT CAST(1.5F AS DOUBLE)
SELECT array_max(array(1.5, NULL, 2)), sort_array(array('b', NULL, 'a')), array_contains(array(1, 2), 2L)
SELECT upper(customer) AS customer, sum(qty) FROM orders GROUP BY customer ORDER BY customer
SELECT st.x AS x, sum(id) FROM nest GROUP BY st.x HAVING sum(id) > 1 ORDER BY x
SELECT lower('İ')
SELECT regexp_replace('aXbX', 'X$', ''), regexp_extract('k=v;', '(\\w+)=(\\w*)', 2), 'a.b' RLIKE 'a\\.b', 'tab\t' RLIKE '\\t$'

-- windows of time, grouping sets and what views use
SELECT CAST(1 AS DECIMAL(38,4)) / CAST(3 AS DECIMAL(38,4)), CAST(amount AS DECIMAL(38,6)) / CAST(qty AS DECIMAL(38, 4)) FROM orders
SELECT CAST(1 AS DECIMAL(38,4)) / CAST(0 AS DECIMAL(38,4))
SELECT CAST('0.00004' AS DECIMAL(38,6)) > CAST('0.00' AS DECIMAL(36,2)), CAST('0.00006' AS DECIMAL(38,6)) > CAST('0.00' AS DECIMAL(36,2)), CAST('0.00005' AS DECIMAL(38,6)) = CAST('0' AS DECIMAL(36,2))
SELECT sum(amount) > (SELECT sum(amount) * 0.0001 FROM orders) FROM orders
SELECT CAST(amount AS DECIMAL(36, 2)) > CAST(amount AS DECIMAL(36, 2)) * 0.00010 FROM orders
SELECT window.start FROM (SELECT count(*) AS n, window FROM days GROUP BY window(ts, '10 minutes')) ORDER BY 1
SELECT count(*), window.start, window.end FROM days GROUP BY window(ts, '10 minutes') ORDER BY 2
SELECT count(*), window.start, window.end AS e FROM days GROUP BY window(ts, '10 minutes', '5 minutes') ORDER BY 2
SELECT window(ts, '1 hour') AS w, id FROM days ORDER BY id
SELECT window(ts, '1 hour').start, id FROM days ORDER BY id
SELECT window, count(*) FROM days GROUP BY window(ts, '1 day', '12 hours', '1 hour')
SELECT window(ts, '1 hour', '20 minutes') AS w, id FROM days
SELECT count(*) FROM days GROUP BY window(ts, '10 minutes', '7 minutes')
SELECT id, row_number() OVER (PARTITION BY customer ORDER BY id) AS r FROM orders QUALIFY r = 1
SELECT id FROM orders QUALIFY row_number() OVER (PARTITION BY customer ORDER BY id) = 1 ORDER BY id
SELECT max(id), window FROM days WHERE id < 0 GROUP BY window(ts, '1 hour')
SELECT id FROM days WHERE window(ts, '1 hour').start > '2000-01-01'
SELECT window(ts, '1 hour').start AS s, count(*) FROM days GROUP BY s
SELECT window(ts, '1 hour').start AS s, window(ts, '1 hour').end AS e, count(*) FROM days GROUP BY s, e ORDER BY s
SELECT window.start, count(*) FROM days GROUP BY window(ts, '1 hour') HAVING window.start > '2000-01-01' ORDER BY window.start
SELECT window.start, window.end, window(ts, '1 hour') FROM days GROUP BY window(ts, '1 hour')
SELECT customer, qty, count(*), sum(qty), grouping(customer), grouping_id(), grouping_id(customer, qty) FROM orders GROUP BY ROLLUP (customer, qty) ORDER BY 1, 2, 5, 6, 3
SELECT customer, count(*) FROM orders GROUP BY ROLLUP (customer) ORDER BY 1, 2
SELECT customer, qty, count(*) AS n FROM orders GROUP BY CUBE (customer, qty)
SELECT customer, qty, count(*) AS n FROM orders GROUP BY customer, qty WITH ROLLUP
SELECT customer, qty, count(*) AS n FROM orders GROUP BY customer, qty WITH CUBE
SELECT customer, qty, count(*) AS n FROM orders GROUP BY GROUPING SETS ((customer, qty), (customer), ())
SELECT customer, qty, count(*) AS n, grouping_id() FROM orders GROUP BY customer, qty GROUPING SETS ((qty), customer)
SELECT customer, qty, day, count(*) AS n, grouping_id() FROM orders GROUP BY customer, ROLLUP (qty, day)
SELECT customer, qty, day, count(*) AS n FROM orders GROUP BY customer, CUBE ((qty, day))
SELECT customer, qty, day, count(*) AS n FROM orders GROUP BY ROLLUP (customer), ROLLUP (qty)
SELECT customer, count(*) AS n FROM orders WHERE id < 0 GROUP BY ROLLUP (customer)
SELECT customer, count(*) AS n FROM orders WHERE id < 0 GROUP BY GROUPING SETS ((customer), ())
SELECT d, count(*) AS n, sum(d), grouping(d) FROM nums GROUP BY ROLLUP (d)
SELECT upper(customer) AS u, count(*) AS n, max(customer) FROM orders GROUP BY ROLLUP (upper(customer)) HAVING count(*) > 1
SELECT customer, sum(qty) AS s, rank() OVER (ORDER BY sum(qty) DESC) AS r FROM orders GROUP BY ROLLUP (customer)
SELECT customer AS c, count(DISTINCT qty) FROM orders GROUP BY CUBE (c)
SELECT 1 AS one, customer, count(*) FROM orders GROUP BY ROLLUP (2)
SELECT customer, coalesce(customer, 'all') AS c, count(*) FROM orders GROUP BY ROLLUP (customer)
SELECT customer, qty, count(*) FROM orders GROUP BY GROUPING SETS ((customer), (customer), (qty))
SELECT CASE WHEN grouping(customer) = 1 THEN 'all' ELSE customer END AS c, count(*) FROM orders GROUP BY ROLLUP (customer) ORDER BY grouping(customer), customer
SELECT * FROM nums NATURAL JOIN orders ORDER BY id
SELECT * FROM customers NATURAL JOIN orders ORDER BY 1, 2, 3
SELECT * FROM (SELECT id, qty FROM orders) NATURAL LEFT JOIN (SELECT id, i FROM nums) ORDER BY id
SELECT id, qty, i FROM (SELECT id, qty FROM orders) NATURAL FULL JOIN (SELECT id, i FROM nums) ORDER BY id
SELECT id FROM orders LEFT SEMI JOIN (SELECT id FROM nums) USING (id) ORDER BY id
SELECT * FROM orders LEFT ANTI JOIN nums USING (id) ORDER BY id
SELECT id, (customer, qty) IN (SELECT name, 1 FROM customers) FROM orders
SELECT id FROM orders WHERE (customer, qty) NOT IN (SELECT name, 1 FROM customers WHERE name IS NOT NULL)
SELECT id FROM orders WHERE (customer, qty) NOT IN (SELECT name, 1 FROM customers) OR id = 1
SELECT id FROM orders o WHERE (customer, 1) IN (SELECT name, o.qty FROM customers) ORDER BY id
SELECT id, (customer, qty) IN (SELECT name, 1 FROM customers) AS b FROM orders
SELECT first(i) IGNORE NULLS, last(i, true), any_value(i) IGNORE NULLS, first(i, false), first_value(i) IGNORE NULLS FROM nums WHERE id > 4
SELECT id, last_value(i) IGNORE NULLS OVER (ORDER BY id) AS n, first_value(i, true) OVER (ORDER BY id DESC) FROM nums ORDER BY id
SELECT id FROM orders QUALIFY row_number() OVER (PARTITION BY customer ORDER BY amount DESC) = 1 ORDER BY id
SELECT id, row_number() OVER (PARTITION BY customer ORDER BY id) AS r FROM orders QUALIFY r = 1 ORDER BY id
SELECT DISTINCT customer FROM orders QUALIFY count(*) OVER (PARTITION BY customer) > 1 ORDER BY customer
SELECT d, count(*) AS n, sum(d), grouping(d), grouping_id() FROM nums GROUP BY ROLLUP (d)
SELECT customer, sum(qty) FROM orders GROUP BY ROLLUP (customer) HAVING grouping(customer) = 0 ORDER BY customer
SELECT customer, sum(qty) FROM orders GROUP BY ROLLUP (customer) HAVING sum(qty) > 5 AND customer IS NOT NULL ORDER BY customer
SELECT sum(qty) AS s FROM orders GROUP BY ROLLUP (customer) HAVING grouping_id() = 1
SELECT customer, sum(qty) AS s FROM orders GROUP BY CUBE (customer, day) ORDER BY grouping_id(), customer, s
SELECT customer, qty, count(*) AS n FROM orders GROUP BY ROLLUP (customer), ROLLUP (qty)
SELECT customer, qty, count(*) AS n, grouping_id() AS g FROM orders GROUP BY ROLLUP (customer), CUBE (qty)
SELECT customer, qty, count(*) AS n FROM orders GROUP BY customer, GROUPING SETS ((qty), ())
SELECT first_value(i), last_value(i), first(i), any_value(i) FROM nums WHERE id > 4
SELECT id, first(i, true) OVER (ORDER BY id DESC) FROM nums ORDER BY id
SELECT id, (customer, qty + 1) IN (SELECT name, 1 FROM customers) FROM orders
SELECT id FROM orders WHERE qty > 1 QUALIFY count(*) OVER (PARTITION BY customer) > 1 ORDER BY id
SELECT a.id FROM orders a LEFT SEMI JOIN nums b ON a.id <=> b.i ORDER BY a.id
SELECT a.id, b.i FROM nums a JOIN nums b ON a.i <=> b.i ORDER BY a.id
SELECT id FROM orders o WHERE qty > (SELECT avg(qty) FROM orders i WHERE i.customer <=> o.customer) ORDER BY id
SELECT id FROM orders WHERE id = 1 OR customer IN (SELECT name FROM customers WHERE city = 'Rome') ORDER BY id
SELECT id FROM orders WHERE qty = 5 OR EXISTS (SELECT 1 FROM customers WHERE name = customer AND city = 'Oslo') ORDER BY id
SELECT id FROM orders WHERE NOT (qty = 5 OR customer NOT IN (SELECT name FROM customers WHERE name IS NOT NULL)) ORDER BY id
SELECT id, (SELECT city FROM customers WHERE name = customer) AS c, (SELECT count(*) FROM nums WHERE i = qty) AS n FROM orders ORDER BY id
SELECT customer, sum(qty) AS s FROM orders GROUP BY customer HAVING sum(qty) > (SELECT avg(qty) FROM orders) AND customer IN (SELECT name FROM customers) ORDER BY s
SELECT qty FROM orders EXCEPT ALL SELECT id FROM nums WHERE id < 3
SELECT qty FROM orders INTERSECT ALL SELECT qty FROM orders WHERE id < 4
SELECT customer FROM orders EXCEPT SELECT name FROM customers
SELECT customer FROM orders INTERSECT SELECT name FROM customers
SELECT d FROM nums EXCEPT SELECT 0.0D
SELECT customer, collect_set(qty) FROM orders WHERE id < 3 GROUP BY customer
SELECT customer, max_by(id, amount), min_by(id, amount), max_by(id, day) FROM orders GROUP BY customer ORDER BY customer
SELECT customer, count(DISTINCT qty) FILTER (WHERE id > 1), sum(DISTINCT qty) FILTER (WHERE id > 1) FROM orders GROUP BY customer ORDER BY customer
SELECT window.start AS s, count(DISTINCT id) FILTER (WHERE id > 1) AS n FROM days GROUP BY window(ts, '1 day', '8 hours') ORDER BY s
SELECT d.id, w.n FROM days d JOIN (SELECT window.start AS s, window.end AS e, count(*) AS n FROM days GROUP BY window(ts, '1 day')) w ON d.ts >= w.s AND d.ts < w.e ORDER BY d.id
SELECT window(ts, '30 minutes', '30 minutes', '10 minutes').end AS e, id % 2 AS k, sum(id) AS s FROM days GROUP BY 1, 2 ORDER BY 1, 2
SELECT sum(id) OVER (PARTITION BY window(ts, '365 days') ORDER BY id) AS s FROM days
SELECT DISTINCT window(ts, '365 days').start AS s FROM days ORDER BY s
SELECT window(ts, 'interval 90 minutes') AS w FROM days
SELECT window(ts, '1 hour 30 minutes') AS w FROM days
SELECT * , window(ts, '1 hour') FROM days
SELECT id, ts FROM days a WHERE EXISTS (SELECT 1 FROM days b GROUP BY window(b.ts, '1 hour') HAVING window.start < a.ts) ORDER BY id
SELECT count(*) OVER w AS n FROM orders WINDOW w AS (PARTITION BY customer) ORDER BY n
SELECT id FROM orders WHERE qty <=> NULL
SELECT o.id FROM orders o FULL JOIN customers c ON o.customer <=> c.name ORDER BY o.id
SELECT 100.00 * sum(CASE WHEN qty > 1 THEN amount * (1 - amount) ELSE 0 END) / sum(amount * (1 - amount)) AS r FROM orders
SELECT sum(amount * qty) > (SELECT sum(amount * qty) * 0.0001 FROM orders) AS b FROM orders
SELECT max(window.start) AS m FROM (SELECT window(ts, '1 hour') AS window FROM days)
SELECT window.start FROM (SELECT window(ts, '1 hour') AS window FROM days) GROUP BY window.start
SELECT count(*), window FROM days GROUP BY window(ts, '1 hour') HAVING count(*) > 0 AND window.start > '2019-01-01'
SELECT id, (qty + 1, customer, id) IN (SELECT 1, name, 1 FROM customers) FROM orders
SELECT first(i) IGNORE NULLS, last(i, true), any_value(i) IGNORE NULLS, first(i, false), first_value(i) IGNORE NULLS, last_value(i) IGNORE NULLS, first_value(i, true) FROM nums WHERE id > 4
SELECT id, last_value(i) IGNORE NULLS OVER (ORDER BY id), first(i) IGNORE NULLS OVER (ORDER BY id DESC) FROM nums ORDER BY id
SELECT window(ts, '1 hour'), count(*) FROM days GROUP BY 1
SELECT count(*) FROM days GROUP BY window(ts, '1 month')
SELECT d, window_time(window) FROM (SELECT d, window(ts, '1 hour') AS window FROM days)
SELECT window, sum(id) AS s FROM days GROUP BY ROLLUP (window(ts, '1 day'))
SELECT count(*) AS n FROM orders WHERE id < 0 GROUP BY GROUPING SETS (())
SELECT customer, sum(qty) AS s FROM orders GROUP BY customer QUALIFY rank() OVER (ORDER BY s DESC) <= 2 ORDER BY s
SELECT ts + INTERVAL 1 HOUR 30 MINUTES FROM days
SELECT session_window, count(*) AS n FROM days GROUP BY session_window(ts, '1 hour') ORDER BY session_window.start
SELECT customer, session_window.start, session_window.end, count(*) FROM (SELECT id, customer, CAST(day AS TIMESTAMP) AS t FROM orders) GROUP BY customer, session_window(t, '29 days') ORDER BY 1, 2
SELECT customer, session_window.start, session_window.end, count(*) FROM (SELECT id, customer, CAST(day AS TIMESTAMP) AS t FROM orders) GROUP BY customer, session_window(t, '28 days') ORDER BY 1, 2
SELECT d, session_window.start, count(*) FROM (SELECT * FROM days JOIN (SELECT id, d % 2 AS k FROM nums) USING (id)) GROUP BY d, session_window(ts, '29 days') ORDER BY 1, 2
SELECT customer, max(session_window.end) AS e FROM (SELECT o.customer, session_window FROM (SELECT * FROM orders JOIN (SELECT id, ts FROM days) USING (id)) o GROUP BY o.customer, session_window(ts, '5 days')) GROUP BY customer
SELECT session_window(ts, '1 hour') AS w, id FROM days
SELECT a.id, b.id FROM nest a JOIN nest b ON a.st <=> b.st AND a.id <> b.id
SELECT a = array(1, NULL, 1) FROM nest
SELECT named_struct('x', id, 'y', y) = st FROM (SELECT id, st, st.y AS y FROM nest)
SELECT x.n, y.n FROM (SELECT window, count(*) AS n FROM days GROUP BY window(ts, '1 day')) x JOIN (SELECT window, max(id) AS n FROM days GROUP BY window(ts, '1 day')) y ON x.window = y.window ORDER BY 1, 2
SELECT DISTINCT st FROM nest
SELECT st, count(*) FROM nest GROUP BY st
SELECT a, count(*) AS n FROM nest GROUP BY a
SELECT st FROM nest UNION SELECT st FROM nest
SELECT st FROM nest EXCEPT SELECT st FROM nest WHERE id = 1
SELECT window(TIMESTAMP '2020-01-01 00:07:00', '10 minutes').start AS s
SELECT window(TIMESTAMP '2020-01-01 00:07:00', '10 minutes', '5 minutes').start AS s
SELECT count(DISTINCT st), count(DISTINCT a) FROM nest
SELECT customer, sum(w * qty) AS s, sum(w) AS n FROM (SELECT *, -1 AS w FROM orders WHERE id < 3 UNION ALL SELECT *, 1 AS w FROM orders) GROUP BY customer HAVING sum(w) <> 0 ORDER BY customer
SELECT coalesce(sum(CASE WHEN w > 0 THEN amount END), 0) - coalesce(sum(CASE WHEN w < 0 THEN amount END), 0) AS d FROM (SELECT amount, if(qty > 2, 1, -1) AS w FROM orders)
SELECT count(*) FILTER (WHERE customer IS NULL) AS n, count(*) - count(customer) AS m FROM orders
SELECT id FROM orders a WHERE NOT EXISTS (SELECT 1 FROM orders b WHERE b.customer <=> a.customer AND (b.amount > a.amount OR (b.amount = a.amount AND b.id < a.id))) ORDER BY id
SELECT o.id, x.total FROM orders o LEFT JOIN (SELECT customer, sum(qty) AS total FROM orders WHERE customer IN (SELECT name FROM customers) GROUP BY customer) x ON x.customer <=> o.customer ORDER BY o.id
SELECT id, row_number() OVER (PARTITION BY customer ORDER BY amount DESC, id) AS r FROM orders WHERE customer IS NULL OR EXISTS (SELECT 1 FROM customers c WHERE c.name <=> customer) ORDER BY id
SELECT explode(sequence(1, w)) AS e, id FROM (SELECT id, qty AS w FROM orders) ORDER BY id, e
SELECT id FROM orders LATERAL VIEW explode(sequence(1, qty)) v AS e WHERE e > 2 ORDER BY id, e
SELECT id, n FROM orders LEFT JOIN (SELECT name, count(*) AS n FROM customers GROUP BY name) c ON c.name = customer AND qty > 1 ORDER BY id
SELECT listagg(customer, ',') WITHIN GROUP (ORDER BY customer) FROM orders
SELECT bit_and(qty), bit_or(qty), bit_xor(qty) FROM orders
SELECT sum(qty) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS s FROM orders ORDER BY id
SELECT id, lag(qty) OVER (PARTITION BY customer ORDER BY id) AS l FROM orders ORDER BY id
SELECT every(qty > 0), max(DISTINCT qty), avg(DISTINCT qty) FROM orders
SELECT collect_list(qty) FILTER (WHERE qty > 3) FROM orders
SELECT sum(amount) FILTER (WHERE qty > 100) AS s FROM orders
SELECT a.id AS i, b.id AS j, a.st = b.st AS e, a.st <=> b.st AS s, a.st <> b.st AS n FROM nest a CROSS JOIN nest b ORDER BY i, j
SELECT p.id AS i, q.id AS j, p.a = q.a AS e, p.a <=> q.a AS s, p.w <> q.w AS n FROM nest p CROSS JOIN nest q ORDER BY i, j
SELECT p.id FROM nest p WHERE EXISTS (SELECT 1 FROM nest b WHERE p.a <=> b.a AND p.id <> b.id)
SELECT qty, listagg(customer, ', ') WITHIN GROUP (ORDER BY id DESC) AS l FROM orders GROUP BY qty ORDER BY qty
SELECT listagg(customer) WITHIN GROUP (ORDER BY customer DESC, id) FROM orders
SELECT string_agg(customer, '-') WITHIN GROUP (ORDER BY id) FROM orders
SELECT listagg(customer, ',') WITHIN GROUP (ORDER BY customer) FROM orders WHERE id < 0
SELECT customer, listagg(customer, ',') WITHIN GROUP (ORDER BY id) AS l FROM orders GROUP BY ALL ORDER BY customer
SELECT bit_and(qty), bit_or(qty), bit_xor(qty), bit_and(id) FILTER (WHERE id < 0) FROM orders
SELECT bit_and(t), bit_or(s), bit_xor(l), bit_xor(i) FROM nums
SELECT CAST('-0.00004' AS DECIMAL(38,6)) < CAST('0.00' AS DECIMAL(36,2)), CAST('-0.00005' AS DECIMAL(38,6)) < CAST('0.00' AS DECIMAL(36,2))
SELECT id FROM orders WHERE CAST(amount AS DECIMAL(36, 2)) IN (CAST('10.000001' AS DECIMAL(38, 6)), CAST('20.55' AS DECIMAL(38, 6)))
SELECT CAST(amount AS DECIMAL(36, 2)) BETWEEN CAST('10.000001' AS DECIMAL(38, 6)) AND CAST('20.550001' AS DECIMAL(38, 6)) AS b FROM orders
SELECT st IN (SELECT st FROM nest) FROM nest
SELECT max(struct(amount, id)) FROM orders
