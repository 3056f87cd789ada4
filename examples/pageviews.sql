-- Page views and unique visitors of each region, counted as they come.
--
--   tablestore kafka start
--   python examples/pageviews.py --views 0              makes the topic
--   tablestore sql -f examples/pageviews.sql            the counting; goes on until Ctrl-C
--   python examples/pageviews.py                        meanwhile: people who look at pages
--   tablestore sql --live -e "SELECT * FROM pageviews_per_region"

CREATE TABLE IF NOT EXISTS pageviews_per_region (
  user_region STRING,
  pv BIGINT,
  uv BIGINT,
  PRIMARY KEY (user_region) NOT ENFORCED
) WITH (
  'connector' = 'upsert-kafka',
  'topic' = 'pageviews_per_region',
  'properties.bootstrap.servers' = 'localhost:9092',
  'key.format' = 'avro',
  'value.format' = 'avro'
);

CREATE TABLE IF NOT EXISTS pageviews (
  user_id BIGINT,
  page_id BIGINT,
  viewtime TIMESTAMP,
  user_region STRING,
  WATERMARK FOR viewtime AS viewtime - INTERVAL '2' SECOND
) WITH (
  'connector' = 'kafka',
  'topic' = 'pageviews',
  'properties.bootstrap.servers' = 'localhost:9092',
  'format' = 'json'
);

-- calculate the pv, uv and insert into the upsert-kafka sink
INSERT INTO pageviews_per_region
SELECT
  user_region,
  COUNT(*),
  COUNT(DISTINCT user_id)
FROM pageviews
GROUP BY user_region;
