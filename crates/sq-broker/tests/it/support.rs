//! A broker in this process, and a client that says exactly what it is told to.

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kafka_protocol::indexmap::IndexMap;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::list_offsets_response::ListOffsetsPartitionResponse;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::{
    BrokerId, CreateTopicsRequest, FetchRequest, ListOffsetsRequest, MetadataRequest,
    ProduceRequest, RequestHeader, ResponseHeader, TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use kafka_protocol::records::{
    Compression, Record, RecordBatchDecoder, RecordBatchEncoder, RecordEncodeOptions, TimestampType,
};
use rand::SeedableRng;
use rand::rngs::StdRng;
use sq_broker::broker::{Broker, Surroundings};
use sq_broker::config::Config;
use sq_broker::partition::Appends;
use sq_broker::protocol::{ResponseError, read_frame};
use sq_broker::server::Server;
use sq_sim::{Clock, OsFileSystem, SystemClock};
use sq_storage::log::Executor;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Versions of requests where a test does not care.
pub(crate) const PRODUCE: i16 = 9;
pub(crate) const FETCH: i16 = 12;
pub(crate) const METADATA: i16 = 12;
pub(crate) const LIST_OFFSETS: i16 = 9;
pub(crate) const CREATE_TOPICS: i16 = 7;

/// Runs a test, and fails it if it hangs.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let limit = Duration::from_mins(2);
    runtime.block_on(async {
        tokio::time::timeout(limit, future)
            .await
            .expect("the test hangs")
    })
}

pub(crate) fn code(error: ResponseError) -> i16 {
    error.code()
}

pub(crate) struct TestBroker {
    pub(crate) address: SocketAddr,
    pub(crate) dir: Arc<TempDir>,
    config: Config,
    clock: Arc<dyn Clock>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl TestBroker {
    pub(crate) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(set: impl FnOnce(&mut Config)) -> Self {
        Self::on(Arc::new(SystemClock), set).await
    }

    /// Starts a broker on a clock of the test's.
    pub(crate) async fn on(clock: Arc<dyn Clock>, set: impl FnOnce(&mut Config)) -> Self {
        let dir = Arc::new(TempDir::new().unwrap());
        let mut config = Config::default();
        config.listen.port = 0;
        config.data_dir = dir.path().join("data");
        set(&mut config);
        config.validate().unwrap();
        Self::run(dir, config, clock).await
    }

    /// Starts a broker on a directory that another one left.
    pub(crate) async fn again(dir: Arc<TempDir>) -> Self {
        let mut config = Config::default();
        config.listen.port = 0;
        config.data_dir = dir.path().join("data");
        Self::run(dir, config, Arc::new(SystemClock)).await
    }

    async fn run(dir: Arc<TempDir>, config: Config, clock: Arc<dyn Clock>) -> Self {
        let server = Server::bind(&config.listen.to_string()).await.unwrap();
        let address = server.address();
        let fs = Arc::new(OsFileSystem::blocking_pool());
        let surroundings = Surroundings {
            fs: Arc::clone(&fs),
            appends: Appends {
                fs,
                executor: Executor::Runtime(Handle::current()),
            },
            clock: Arc::clone(&clock),
            rng: StdRng::seed_from_u64(address.port().into()),
        };
        let advertised = config.advertised(address.port());
        let broker = Broker::start(config.clone(), advertised, surroundings)
            .await
            .unwrap();
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(server.run(broker, stopped));
        Self {
            address,
            dir,
            config,
            clock,
            stop,
            task,
        }
    }

    pub(crate) fn data_dir(&self) -> &Path {
        &self.config.data_dir
    }

    pub(crate) fn begin_stop(&self) {
        self.stop.send_replace(true);
    }

    pub(crate) async fn stop(self) -> Arc<TempDir> {
        self.begin_stop();
        self.task.await.unwrap();
        self.dir
    }

    /// Stops and starts again on the same directory.
    pub(crate) async fn restart(self) -> Self {
        let (config, clock) = (self.config.clone(), Arc::clone(&self.clock));
        let dir = self.stop().await;
        Self::run(dir, config, clock).await
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    /// A client, and a topic of one partition.
    pub(crate) async fn client_with(&self, topic: &str) -> Client {
        let mut client = self.client().await;
        assert_eq!(client.create(topic, 1, &[]).await, 0);
        client
    }
}

pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    buffer: BytesMut,
    next_id: i32,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            buffer: BytesMut::new(),
            next_id: 0,
        }
    }

    /// Sends a request and returns its correlation id.
    pub(crate) async fn send<R: Request>(&mut self, version: i16, request: &R) -> i32 {
        self.next_id += 1;
        let frame = encode(version, self.next_id, request);
        self.stream.write_all(&frame).await.unwrap();
        self.next_id
    }

    /// The next response's bytes; `None` once the broker has closed the connection.
    pub(crate) async fn receive_frame(&mut self) -> Option<Bytes> {
        read_frame(&mut self.stream, &mut self.buffer, usize::MAX)
            .await
            .ok()
            .flatten()
    }

    /// The next response and its correlation id.
    pub(crate) async fn receive<R: Request>(&mut self, version: i16) -> (i32, R::Response) {
        let mut frame = self
            .receive_frame()
            .await
            .expect("the broker closed the connection");
        let header = R::Response::header_version(version);
        let header = ResponseHeader::decode(&mut frame, header).unwrap();
        let response = R::Response::decode(&mut frame, version).unwrap();
        assert!(
            frame.is_empty(),
            "{} bytes follow the response",
            frame.len()
        );
        (header.correlation_id, response)
    }

    pub(crate) async fn call<R: Request>(&mut self, version: i16, request: &R) -> R::Response {
        let id = self.send(version, request).await;
        let (answered, response) = self.receive::<R>(version).await;
        assert_eq!(answered, id);
        response
    }

    /// Creates a topic and returns the error code.
    pub(crate) async fn create(
        &mut self,
        name: &str,
        partitions: i32,
        configs: &[(&str, &str)],
    ) -> i16 {
        let request = CreateTopicsRequest::default()
            .with_timeout_ms(10_000)
            .with_topics(vec![new_topic(name, partitions, configs)]);
        self.call(CREATE_TOPICS, &request).await.topics[0].error_code
    }

    /// What the broker says about a topic.
    pub(crate) async fn describe(&mut self, name: &str) -> MetadataResponseTopic {
        let request = metadata(Some(&[name])).with_allow_auto_topic_creation(false);
        self.call(METADATA, &request).await.topics.remove(0)
    }

    pub(crate) async fn produce(
        &mut self,
        topic: &str,
        records: Bytes,
    ) -> PartitionProduceResponse {
        self.call(PRODUCE, &produce(topic, 0, -1, records))
            .await
            .responses[0]
            .partition_responses[0]
            .clone()
    }

    /// Produces and returns the base offset.
    pub(crate) async fn append(&mut self, topic: &str, records: Bytes) -> i64 {
        let response = self.produce(topic, records).await;
        assert_eq!(response.error_code, 0, "{:?}", response.error_message);
        response.base_offset
    }

    /// Fetches one partition: its error code, and its records' offsets and values.
    pub(crate) async fn fetch(&mut self, topic: &str, offset: i64) -> (i16, Vec<(i64, Bytes)>) {
        let response = self.call(FETCH, &fetch(topic, 0, offset)).await;
        let partition = &response.responses[0].partitions[0];
        (partition.error_code, values(partition.records.clone()))
    }

    pub(crate) async fn list_offsets(
        &mut self,
        version: i16,
        topic: &str,
        timestamp: i64,
    ) -> ListOffsetsPartitionResponse {
        let partition = ListOffsetsPartition::default()
            .with_timestamp(timestamp)
            .with_current_leader_epoch(-1);
        let topic = ListOffsetsTopic::default()
            .with_name(name(topic))
            .with_partitions(vec![partition]);
        let request = ListOffsetsRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_topics(vec![topic]);
        self.call(version, &request).await.topics[0].partitions[0].clone()
    }

    /// The offset that the next record will get.
    pub(crate) async fn end(&mut self, topic: &str) -> i64 {
        let found = self.list_offsets(LIST_OFFSETS, topic, -1).await;
        assert_eq!(found.error_code, 0);
        found.offset
    }
}

pub(crate) fn encode<R: Request>(version: i16, correlation_id: i32, request: &R) -> Bytes {
    let mut frame = BytesMut::zeroed(4);
    RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(correlation_id)
        .with_client_id(Some(StrBytes::from_static_str("test")))
        .encode(&mut frame, R::header_version(version))
        .unwrap();
    request.encode(&mut frame, version).unwrap();
    let length = i32::try_from(frame.len() - 4).unwrap();
    frame[..4].copy_from_slice(&length.to_be_bytes());
    frame.freeze()
}

pub(crate) fn name(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_owned()))
}

pub(crate) fn new_topic(text: &str, partitions: i32, configs: &[(&str, &str)]) -> CreatableTopic {
    let config = |(key, value): &(&str, &str)| {
        CreatableTopicConfig::default()
            .with_name(StrBytes::from_string((*key).to_owned()))
            .with_value(Some(StrBytes::from_string((*value).to_owned())))
    };
    CreatableTopic::default()
        .with_name(name(text))
        .with_num_partitions(partitions)
        .with_replication_factor(-1)
        .with_configs(configs.iter().map(config).collect())
}

pub(crate) fn metadata(topics: Option<&[&str]>) -> MetadataRequest {
    let topic = |text: &&str| MetadataRequestTopic::default().with_name(Some(name(text)));
    MetadataRequest::default()
        .with_topics(topics.map(|topics| topics.iter().map(topic).collect()))
        .with_allow_auto_topic_creation(true)
}

pub(crate) fn produce(topic: &str, partition: i32, acks: i16, records: Bytes) -> ProduceRequest {
    let data = PartitionProduceData::default()
        .with_index(partition)
        .with_records(Some(records));
    let topic = TopicProduceData::default()
        .with_name(name(topic))
        .with_partition_data(vec![data]);
    ProduceRequest::default()
        .with_acks(acks)
        .with_timeout_ms(10_000)
        .with_topic_data(vec![topic])
}

pub(crate) fn fetch_partition(partition: i32, offset: i64, max_bytes: i32) -> FetchPartition {
    FetchPartition::default()
        .with_partition(partition)
        .with_fetch_offset(offset)
        .with_current_leader_epoch(-1)
        .with_partition_max_bytes(max_bytes)
}

/// A fetch that does not wait.
pub(crate) fn fetch(topic: &str, partition: i32, offset: i64) -> FetchRequest {
    let topic = FetchTopic::default()
        .with_topic(name(topic))
        .with_partitions(vec![fetch_partition(partition, offset, 1 << 20)]);
    FetchRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_max_wait_ms(0)
        .with_min_bytes(1)
        .with_max_bytes(50 << 20)
        .with_session_epoch(-1)
        .with_topics(vec![topic])
}

/// What a record is made of, where a test cares.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) producer: (i64, i16, i32),
    pub(crate) timestamps: Vec<i64>,
    pub(crate) value_len: usize,
    pub(crate) compression: Compression,
}

impl Batch {
    /// A batch of this many small records.
    pub(crate) fn of(records: usize) -> Self {
        Self {
            producer: (-1, -1, -1),
            timestamps: vec![1_000; records],
            value_len: 10,
            compression: Compression::None,
        }
    }

    /// From an idempotent producer: its id, its epoch, and the first record's sequence.
    pub(crate) fn by(mut self, id: i64, epoch: i16, sequence: i32) -> Self {
        self.producer = (id, epoch, sequence);
        self
    }

    pub(crate) fn at(mut self, timestamps: &[i64]) -> Self {
        self.timestamps = timestamps.to_vec();
        self
    }

    pub(crate) fn sized(mut self, value_len: usize) -> Self {
        self.value_len = value_len;
        self
    }

    pub(crate) fn bytes(&self) -> Bytes {
        let (producer_id, producer_epoch, first) = self.producer;
        let records: Vec<Record> = (0_i32..)
            .zip(&self.timestamps)
            .map(|(n, timestamp)| Record {
                transactional: false,
                control: false,
                delete_horizon: false,
                partition_leader_epoch: -1,
                producer_id,
                producer_epoch,
                timestamp_type: TimestampType::Creation,
                offset: n.into(),
                sequence: first.wrapping_add(n),
                timestamp: *timestamp,
                key: None,
                value: Some(vec![u8::try_from(n % 251).unwrap(); self.value_len].into()),
                headers: IndexMap::new(),
            })
            .collect();
        let mut bytes = BytesMut::new();
        let options = RecordEncodeOptions {
            version: 2,
            compression: self.compression,
        };
        RecordBatchEncoder::encode(&mut bytes, &records, &options).unwrap();
        bytes.freeze()
    }
}

/// The offsets and values in what a fetch gave.
pub(crate) fn values(records: Option<Bytes>) -> Vec<(i64, Bytes)> {
    let mut records = records.unwrap_or_default();
    let mut values = Vec::new();
    while !records.is_empty() {
        let set = RecordBatchDecoder::decode(&mut records).unwrap();
        values.extend(
            set.records
                .into_iter()
                .map(|r| (r.offset, r.value.unwrap())),
        );
    }
    values
}

/// Bytes of the batches that start in what a fetch gave.
pub(crate) fn batches(records: Option<&Bytes>) -> Vec<Bytes> {
    let mut rest = records.cloned().unwrap_or_default();
    let mut batches = Vec::new();
    while rest.len() >= 12 {
        let length = i32::from_be_bytes(rest[8..12].try_into().unwrap());
        batches.push(rest.split_to(12 + usize::try_from(length).unwrap()));
    }
    assert!(rest.is_empty());
    batches
}
