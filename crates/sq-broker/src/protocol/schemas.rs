//! The requests' fields, version by version, as Apache Kafka's message definitions give them; and of our own.

use super::Api;
use super::schema::{Field, Kind, Struct};

const fn i8(name: &'static str) -> Field {
    Field::new(name, Kind::Fixed(1))
}

const fn boolean(name: &'static str) -> Field {
    Field::new(name, Kind::Fixed(1))
}

const fn i16(name: &'static str) -> Field {
    Field::new(name, Kind::Fixed(2))
}

const fn i32(name: &'static str) -> Field {
    Field::new(name, Kind::Fixed(4))
}

const fn i64(name: &'static str) -> Field {
    Field::new(name, Kind::Fixed(8))
}

const fn uuid(name: &'static str) -> Field {
    Field::new(name, Kind::Fixed(16))
}

const fn text(name: &'static str) -> Field {
    Field::new(name, Kind::Text)
}

const fn records(name: &'static str) -> Field {
    Field::new(name, Kind::Blob)
}

const fn list(name: &'static str, element: &'static Kind) -> Field {
    Field::new(name, Kind::List(element))
}

const fn plain(fields: &'static [Field]) -> Struct {
    Struct {
        fields,
        tagged: &[],
    }
}

/// The header of every request. Its tagged fields come with header version 2.
pub(super) static REQUEST_HEADER: Struct = plain(&[
    i16("request_api_key"),
    i16("request_api_version"),
    i32("correlation_id"),
    text("client_id").null_since(0),
]);

/// The table of an API's request.
pub(super) const fn request(api: Api) -> &'static Struct {
    match api {
        Api::Produce => &PRODUCE,
        Api::Fetch => &FETCH,
        Api::ListOffsets => &LIST_OFFSETS,
        Api::Metadata => &METADATA,
        Api::FindCoordinator => &FIND_COORDINATOR,
        Api::ApiVersions => &API_VERSIONS,
        Api::CreateTopics => &CREATE_TOPICS,
        Api::DeleteTopics => &DELETE_TOPICS,
        Api::DeleteRecords => &DELETE_RECORDS,
        Api::InitProducerId => &INIT_PRODUCER_ID,
        Api::DescribeConfigs => &DESCRIBE_CONFIGS,
        Api::DescribeCluster => &DESCRIBE_CLUSTER,
        Api::DescribeRolls => &DESCRIBE_ROLLS,
    }
}

static PRODUCE: Struct = plain(&[
    text("transactional_id").since(3).null_since(3),
    i16("acks"),
    i32("timeout_ms"),
    list(
        "topic_data",
        &Kind::Nested(&plain(&[
            text("name").until(12),
            uuid("topic_id").since(13),
            list(
                "partition_data",
                &Kind::Nested(&plain(&[i32("index"), records("records").null_since(0)])),
            ),
        ])),
    ),
]);

static FETCH: Struct = Struct {
    fields: &[
        i32("replica_id").until(14),
        i32("max_wait_ms"),
        i32("min_bytes"),
        i32("max_bytes"),
        i8("isolation_level"),
        i32("session_id").since(7),
        i32("session_epoch").since(7),
        list(
            "topics",
            &Kind::Nested(&plain(&[
                text("topic").until(12),
                uuid("topic_id").since(13),
                list("partitions", &Kind::Nested(&FETCH_PARTITION)),
            ])),
        ),
        list(
            "forgotten_topics_data",
            &Kind::Nested(&plain(&[
                text("topic").until(12),
                uuid("topic_id").since(13),
                list("partitions", &Kind::Fixed(4)),
            ])),
        )
        .since(7),
        text("rack_id").since(11),
    ],
    tagged: &[
        (0, text("cluster_id").since(12).null_since(12)),
        (
            1,
            Field::new(
                "replica_state",
                Kind::Nested(&plain(&[i32("replica_id"), i64("replica_epoch")])),
            )
            .since(15),
        ),
    ],
};

static FETCH_PARTITION: Struct = Struct {
    fields: &[
        i32("partition"),
        i32("current_leader_epoch").since(9),
        i64("fetch_offset"),
        i32("last_fetched_epoch").since(12),
        i64("log_start_offset").since(5),
        i32("partition_max_bytes"),
    ],
    tagged: &[(0, uuid("replica_directory_id").since(17))],
};

static LIST_OFFSETS: Struct = plain(&[
    i32("replica_id"),
    i8("isolation_level").since(2),
    list(
        "topics",
        &Kind::Nested(&plain(&[
            text("name"),
            list(
                "partitions",
                &Kind::Nested(&plain(&[
                    i32("partition_index"),
                    i32("current_leader_epoch").since(4),
                    i64("timestamp"),
                ])),
            ),
        ])),
    ),
    i32("timeout_ms").since(10),
]);

static METADATA: Struct = plain(&[
    list(
        "topics",
        &Kind::Nested(&plain(&[
            uuid("topic_id").since(10),
            text("name").null_since(10),
        ])),
    )
    .null_since(1),
    boolean("allow_auto_topic_creation").since(4),
    boolean("include_cluster_authorized_operations")
        .since(8)
        .until(10),
    boolean("include_topic_authorized_operations").since(8),
]);

static FIND_COORDINATOR: Struct = plain(&[
    text("key").until(3),
    i8("key_type").since(1),
    list("coordinator_keys", &Kind::Text).since(4),
]);

static API_VERSIONS: Struct = plain(&[
    text("client_software_name").since(3),
    text("client_software_version").since(3),
]);

static CREATE_TOPICS: Struct = plain(&[
    list(
        "topics",
        &Kind::Nested(&plain(&[
            text("name"),
            i32("num_partitions"),
            i16("replication_factor"),
            list(
                "assignments",
                &Kind::Nested(&plain(&[
                    i32("partition_index"),
                    list("broker_ids", &Kind::Fixed(4)),
                ])),
            ),
            list(
                "configs",
                &Kind::Nested(&plain(&[text("name"), text("value").null_since(0)])),
            ),
        ])),
    ),
    i32("timeout_ms"),
    boolean("validate_only").since(1),
]);

static DELETE_TOPICS: Struct = plain(&[
    list(
        "topics",
        &Kind::Nested(&plain(&[text("name").null_since(6), uuid("topic_id")])),
    )
    .since(6),
    list("topic_names", &Kind::Text).until(5),
    i32("timeout_ms"),
]);

static DELETE_RECORDS: Struct = plain(&[
    list(
        "topics",
        &Kind::Nested(&plain(&[
            text("name"),
            list(
                "partitions",
                &Kind::Nested(&plain(&[i32("partition_index"), i64("offset")])),
            ),
        ])),
    ),
    i32("timeout_ms"),
]);

static INIT_PRODUCER_ID: Struct = plain(&[
    text("transactional_id").null_since(0),
    i32("transaction_timeout_ms"),
    i64("producer_id").since(3),
    i16("producer_epoch").since(3),
]);

static DESCRIBE_CONFIGS: Struct = plain(&[
    list(
        "resources",
        &Kind::Nested(&plain(&[
            i8("resource_type"),
            text("resource_name"),
            list("configuration_keys", &Kind::Text).null_since(0),
        ])),
    ),
    boolean("include_synonyms").since(1),
    boolean("include_documentation").since(3),
]);

static DESCRIBE_CLUSTER: Struct = plain(&[
    boolean("include_cluster_authorized_operations"),
    i8("endpoint_type").since(1),
    boolean("include_fenced_brokers").since(2),
]);

static DESCRIBE_ROLLS: Struct = plain(&[text("topic"), i32("partition"), i32("most")]);
