Statements of the documentation, as written (Q01 to Q15) and its inline fragments (I01 to I07), and what they become.

---- Q01 pageviews_per_region
CREATE TABLE pageviews_per_region (
  user_region STRING,
  pv BIGINT,
  uv BIGINT,
  PRIMARY KEY (user_region) NOT ENFORCED
) WITH (
  'connector' = 'upsert-kafka',
  'topic' = 'pageviews_per_region',
  'properties.bootstrap.servers' = '...',
  'key.format' = 'avro',
  'value.format' = 'avro'
);

---- becomes
CREATE TABLE `pageviews_per_region` (
  `user_region` STRING,
  `pv` BIGINT,
  `uv` BIGINT,
  PRIMARY KEY (`user_region`) NOT ENFORCED
)
WITH (
  'connector' = 'upsert-kafka',
  'topic' = 'pageviews_per_region',
  'properties.bootstrap.servers' = '...',
  'key.format' = 'avro',
  'value.format' = 'avro'
)

---- Q02 pageviews
CREATE TABLE pageviews (
  user_id BIGINT,
  page_id BIGINT,
  viewtime TIMESTAMP,
  user_region STRING,
  WATERMARK FOR viewtime AS viewtime - INTERVAL '2' SECOND
) WITH (
  'connector' = 'kafka',
  'topic' = 'pageviews',
  'properties.bootstrap.servers' = '...',
  'format' = 'json'
);

---- becomes
CREATE TABLE `pageviews` (
  `user_id` BIGINT,
  `page_id` BIGINT,
  `viewtime` TIMESTAMP(6),
  `user_region` STRING,
  WATERMARK FOR `viewtime` AS viewtime - INTERVAL '2' SECOND
)
WITH (
  'connector' = 'kafka',
  'topic' = 'pageviews',
  'properties.bootstrap.servers' = '...',
  'format' = 'json'
)

---- Q03 INSERT INTO pageviews_per_region
-- calculate the pv, uv and insert into the upsert-kafka sink
INSERT INTO pageviews_per_region
SELECT
  user_region,
  COUNT(*),
  COUNT(DISTINCT user_id)
FROM pageviews
GROUP BY user_region;

---- becomes
INSERT INTO `pageviews_per_region`
SELECT
  user_region,
  COUNT(*),
  COUNT(DISTINCT user_id)
FROM pageviews
GROUP BY user_region

---- Q04 KafkaTable (upsert)
CREATE TABLE KafkaTable (
  `ts` TIMESTAMP(3) METADATA FROM 'timestamp',
  `user_id` BIGINT,
  `item_id` BIGINT,
  `behavior` STRING,
  PRIMARY KEY (`user_id`) NOT ENFORCED
) WITH (
  'connector' = 'upsert-kafka',
  ...

  'key.format' = 'json',
  'key.json.ignore-parse-errors' = 'true',

  'value.format' = 'json',
  'value.json.fail-on-missing-field' = 'false',
  'value.fields-include' = 'EXCEPT_KEY'
)

---- error
line 9, column 3: '...' is a placeholder; replace it

---- Q05 pageviews_per_region (damaged Q01)
CREATE TABLE pageviews_per_region (
  user_region STRING,
  pv BIGINT,
  uv BIGINT,
) WITH (
  'connector' = 'upsert-kafka',
  'topic' = 'pageviews_per_region',
  'properties.bootstrap.servers' = '...',
  'key.format' = 'avro',
  'value.format' = 'avro'

---- error
line 5, column 1: expected the name of a column, got ')'

---- Q06 pageviews (damaged Q02)
CREATE TABLE pageviews (
  user_id BIGINT,
  page_id BIGINT,
  viewtime TIMESTAMP,
  user_region STRING,
  WATERMARK FOR viewtime AS viewtime - INTERVAL '2' SECOND
) WITH (
  'connector' = 'kafka',
  'topic' = 'pageviews',
  'properties.bootstrap.servers' = '...',
  'format' = 'json'

---- error
line 11, column 20: unexpected end of statement: expected ',' or ')'

---- Q07 INSERT (damaged Q03)
-- calculate the pv, uv and insert into the upsert-kafka sink
INSERT INTO pageviews_per_region
FROM pageviews
GROUP BY user_region;

---- error
line 3, column 1: expected SELECT, VALUES or WITH, got 'FROM'

---- Q08 KafkaTable (damaged Q04)
  `ts` TIMESTAMP(3) METADATA FROM 'timestamp',
  `user_id` BIGINT,
  `item_id` BIGINT,
  `behavior` STRING,
) WITH (
  'connector' = 'upsert-kafka',

  'key.format' = 'json',
  'key.json.ignore-parse-errors' = 'true',

  'value.format' = 'json',
  '' = 'false',
  'value.fields-include' = 'EXCEPT_KEY'

---- error
line 1, column 3: expected a statement (CREATE, DROP, ALTER, SHOW, DESCRIBE, INSERT, DELETE, UPDATE, TRUNCATE, MERGE, EXECUTE STATEMENT SET, SELECT, VALUES, WITH, EXPLAIN, CALL, SET, RESET), got '`ts`'

---- Q09 T (table store with Kafka log)
CREATE TABLE T (...)
WITH (
    'log.system' = 'kafka',
    'kafka.bootstrap.servers' = '...',
    'kafka.topic' = '...'
);

---- error
line 1, column 17: '...' is a placeholder; replace it

---- Q10 user_events
CREATE TABLE user_events (
  user_id    BIGINT,
  item_id    BIGINT,
  category   STRING,
  behavior   STRING,
  event_ts   TIMESTAMP(3) METADATA FROM 'timestamp',
  proctime   AS PROCTIME(),
  WATERMARK FOR event_ts AS event_ts - INTERVAL '5' SECOND
) WITH (
  'connector'                  = 'kafka',
  'topic'                      = 'user_events',
  'properties.bootstrap.servers' = 'localhost:9092',
  'properties.group.id'        = 'flink-consumer-group',
  'scan.startup.mode'          = 'earliest-offset',
  'format'                     = 'json'
)

---- becomes
CREATE TABLE `user_events` (
  `user_id` BIGINT,
  `item_id` BIGINT,
  `category` STRING,
  `behavior` STRING,
  `event_ts` TIMESTAMP(3) METADATA FROM 'timestamp',
  `proctime` AS PROCTIME(),
  WATERMARK FOR `event_ts` AS event_ts - INTERVAL '5' SECOND
)
WITH (
  'connector' = 'kafka',
  'topic' = 'user_events',
  'properties.bootstrap.servers' = 'localhost:9092',
  'properties.group.id' = 'flink-consumer-group',
  'scan.startup.mode' = 'earliest-offset',
  'format' = 'json'
)

---- Q11 order_events_sink
CREATE TABLE order_events_sink (
  order_id   BIGINT,
  product    STRING,
  amount     DECIMAL(10, 2),
  created_at TIMESTAMP(3)
) WITH (
  'connector'                    = 'kafka',
  'topic'                        = 'order_events',
  'properties.bootstrap.servers' = 'localhost:9092',
  'format'                       = 'json'
)

---- becomes
CREATE TABLE `order_events_sink` (
  `order_id` BIGINT,
  `product` STRING,
  `amount` DECIMAL(10, 2),
  `created_at` TIMESTAMP(3)
)
WITH (
  'connector' = 'kafka',
  'topic' = 'order_events',
  'properties.bootstrap.servers' = 'localhost:9092',
  'format' = 'json'
)

---- Q12 INSERT INTO order_events_sink
INSERT INTO order_events_sink
SELECT order_id, product, amount, created_at
FROM orders_source
WHERE amount > 0;

---- becomes
INSERT INTO `order_events_sink`
SELECT order_id, product, amount, created_at
FROM orders_source
WHERE amount > 0

---- Q13 avro_events
CREATE TABLE avro_events (
  user_id   BIGINT,
  message   STRING,
  event_ts  TIMESTAMP(3)
) WITH (
  'connector'                    = 'kafka',
  'topic'                        = 'avro_events',
  'properties.bootstrap.servers' = 'localhost:9092',
  'properties.group.id'          = 'avro-group',
  'scan.startup.mode'            = 'latest-offset',
  'format'                       = 'avro'
)

---- becomes
CREATE TABLE `avro_events` (
  `user_id` BIGINT,
  `message` STRING,
  `event_ts` TIMESTAMP(3)
)
WITH (
  'connector' = 'kafka',
  'topic' = 'avro_events',
  'properties.bootstrap.servers' = 'localhost:9092',
  'properties.group.id' = 'avro-group',
  'scan.startup.mode' = 'latest-offset',
  'format' = 'avro'
)

---- Q14 keyed_events
CREATE TABLE keyed_events (
  user_id  BIGINT,
  payload  STRING
) WITH (
  'connector'                    = 'kafka',
  'topic'                        = 'keyed_topic',
  'properties.bootstrap.servers' = 'localhost:9092',
  'key.format'                   = 'json',
  'key.fields'                   = 'user_id',
  'value.format'                 = 'json',
  'value.fields-include'         = 'EXCEPT_KEY'
)

---- becomes
CREATE TABLE `keyed_events` (
  `user_id` BIGINT,
  `payload` STRING
)
WITH (
  'connector' = 'kafka',
  'topic' = 'keyed_topic',
  'properties.bootstrap.servers' = 'localhost:9092',
  'key.format' = 'json',
  'key.fields' = 'user_id',
  'value.format' = 'json',
  'value.fields-include' = 'EXCEPT_KEY'
)

---- Q15 exactly_once_sink
CREATE TABLE exactly_once_sink (
  id    BIGINT,
  value STRING
) WITH (
  'connector'                    = 'kafka',
  'topic'                        = 'output_topic',
  'properties.bootstrap.servers' = 'localhost:9092',
  'format'                       = 'json',
  'sink.delivery-guarantee'      = 'exactly-once',
  'sink.transactional-id-prefix' = 'flink-txn'
)

---- becomes
CREATE TABLE `exactly_once_sink` (
  `id` BIGINT,
  `value` STRING
)
WITH (
  'connector' = 'kafka',
  'topic' = 'output_topic',
  'properties.bootstrap.servers' = 'localhost:9092',
  'format' = 'json',
  'sink.delivery-guarantee' = 'exactly-once',
  'sink.transactional-id-prefix' = 'flink-txn'
)

---- Q04 with the two options in place of the dots
CREATE TABLE KafkaTable (
  `ts` TIMESTAMP(3) METADATA FROM 'timestamp',
  `user_id` BIGINT,
  `item_id` BIGINT,
  `behavior` STRING,
  PRIMARY KEY (`user_id`) NOT ENFORCED
) WITH (
  'connector' = 'upsert-kafka',
  'topic' = 't',
  'properties.bootstrap.servers' = 'localhost:9092',

  'key.format' = 'json',
  'key.json.ignore-parse-errors' = 'true',

  'value.format' = 'json',
  'value.json.fail-on-missing-field' = 'false',
  'value.fields-include' = 'EXCEPT_KEY'
)

---- becomes
CREATE TABLE `KafkaTable` (
  `ts` TIMESTAMP(3) METADATA FROM 'timestamp',
  `user_id` BIGINT,
  `item_id` BIGINT,
  `behavior` STRING,
  PRIMARY KEY (`user_id`) NOT ENFORCED
)
WITH (
  'connector' = 'upsert-kafka',
  'topic' = 't',
  'properties.bootstrap.servers' = 'localhost:9092',
  'key.format' = 'json',
  'key.json.ignore-parse-errors' = 'true',
  'value.format' = 'json',
  'value.json.fail-on-missing-field' = 'false',
  'value.fields-include' = 'EXCEPT_KEY'
)

---- Q09 with a schema and a primary key
CREATE TABLE T (id BIGINT, v STRING, PRIMARY KEY (id) NOT ENFORCED)
WITH (
    'log.system' = 'kafka',
    'kafka.bootstrap.servers' = '...',
    'kafka.topic' = '...'
);

---- becomes
CREATE TABLE `T` (
  `id` BIGINT,
  `v` STRING,
  PRIMARY KEY (`id`) NOT ENFORCED
)
WITH (
  'log.system' = 'kafka',
  'kafka.bootstrap.servers' = '...',
  'kafka.topic' = '...'
)

---- Q09 with a schema without a key
CREATE TABLE T (id BIGINT, v STRING)
WITH (
    'log.system' = 'kafka',
    'kafka.bootstrap.servers' = '...',
    'kafka.topic' = '...'
);

---- becomes
CREATE TABLE `T` (
  `id` BIGINT,
  `v` STRING
)
WITH (
  'log.system' = 'kafka',
  'kafka.bootstrap.servers' = '...',
  'kafka.topic' = '...'
)

---- Q01 Q02 Q03 as one text
CREATE TABLE pageviews_per_region (
  user_region STRING,
  pv BIGINT,
  uv BIGINT,
  PRIMARY KEY (user_region) NOT ENFORCED
) WITH (
  'connector' = 'upsert-kafka',
  'topic' = 'pageviews_per_region',
  'properties.bootstrap.servers' = '...',
  'key.format' = 'avro',
  'value.format' = 'avro'
);

CREATE TABLE pageviews (
  user_id BIGINT,
  page_id BIGINT,
  viewtime TIMESTAMP,
  user_region STRING,
  WATERMARK FOR viewtime AS viewtime - INTERVAL '2' SECOND
) WITH (
  'connector' = 'kafka',
  'topic' = 'pageviews',
  'properties.bootstrap.servers' = '...',
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

---- becomes
CREATE TABLE `pageviews_per_region` (
  `user_region` STRING,
  `pv` BIGINT,
  `uv` BIGINT,
  PRIMARY KEY (`user_region`) NOT ENFORCED
)
WITH (
  'connector' = 'upsert-kafka',
  'topic' = 'pageviews_per_region',
  'properties.bootstrap.servers' = '...',
  'key.format' = 'avro',
  'value.format' = 'avro'
);
CREATE TABLE `pageviews` (
  `user_id` BIGINT,
  `page_id` BIGINT,
  `viewtime` TIMESTAMP(6),
  `user_region` STRING,
  WATERMARK FOR `viewtime` AS viewtime - INTERVAL '2' SECOND
)
WITH (
  'connector' = 'kafka',
  'topic' = 'pageviews',
  'properties.bootstrap.servers' = '...',
  'format' = 'json'
);
INSERT INTO `pageviews_per_region`
SELECT
  user_region,
  COUNT(*),
  COUNT(DISTINCT user_id)
FROM pageviews
GROUP BY user_region

---- I01
CREATE TABLE t (id BIGINT) WITH ('properties.allow.auto.create.topics' = 'false')

---- becomes
CREATE TABLE `t` (
  `id` BIGINT
)
WITH (
  'properties.allow.auto.create.topics' = 'false'
)

---- I02 the name is lost
CREATE TABLE t (id BIGINT) WITH ('' = 'false')

---- error
line 1, column 34: expected an option's name, got an empty text

---- I03
CREATE TABLE t (id BIGINT) WITH ('log.consistency' = 'eventual')

---- becomes
CREATE TABLE `t` (
  `id` BIGINT
)
WITH (
  'log.consistency' = 'eventual'
)

---- I04
CREATE TABLE t (id BIGINT) WITH ('log.system' = 'kafka')

---- becomes
CREATE TABLE `t` (
  `id` BIGINT
)
WITH (
  'log.system' = 'kafka'
)

---- I05 without quotes as in the prose
CREATE TABLE t (id BIGINT) WITH (scan.startup.mode = 'timestamp')

---- becomes
CREATE TABLE `t` (
  `id` BIGINT
)
WITH (
  'scan.startup.mode' = 'timestamp'
)

---- I06
CREATE TABLE t (id BIGINT) WITH ('scan.startup.specific-offsets' = 'partition:0,offset:42;partition:1,offset:300')

---- becomes
CREATE TABLE `t` (
  `id` BIGINT
)
WITH (
  'scan.startup.specific-offsets' = 'partition:0,offset:42;partition:1,offset:300'
)

---- I07 without quotes as in the prose
CREATE TABLE t (id BIGINT) WITH (sink.delivery-guarantee = 'exactly-once')

---- becomes
CREATE TABLE `t` (
  `id` BIGINT
)
WITH (
  'sink.delivery-guarantee' = 'exactly-once'
)
