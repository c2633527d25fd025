//! A broker's stand-in: it answers fetches from memory, again and again with the same batches, and hands
//! everything else on to the broker. There is no log behind it and no disk, and next to no work, so what a
//! consumer takes of it is the consumer's own limit.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::{
    ApiKey, FetchRequest, FetchResponse, MetadataResponse, RequestHeader, ResponseHeader,
};
use kafka_protocol::protocol::{Decodable, Encodable as _, HeaderVersion, StrBytes};

use crate::machine::Pid;
use crate::wire::{Connection, PREFIX, batches};

/// The longest request, in bytes.
const MAX_REQUEST: usize = 1 << 20;

/// What the stand-in is told.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    broker: SocketAddr,
    /// The offset behind the last record.
    end: u64,
}

/// Says where it listens, and serves until it is killed.
pub(crate) fn run(args: &Args) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let here = listener.local_addr()?;
    writeln!(std::io::stdout(), "{here}")?;
    for stream in listener.incoming() {
        let stream = stream?;
        stream.set_nodelay(true)?;
        let client = Client {
            stream,
            broker: Connection::open(args.broker)?,
            here,
            end: args.end,
            ready: None,
        };
        thread::Builder::new().spawn(move || {
            if let Err(error) = client.serve() {
                // An error means that nobody reads it.
                let _ = writeln!(std::io::stderr(), "stand-in: {error:#}");
            }
        })?;
    }
    Ok(())
}

/// One connection.
struct Client {
    stream: TcpStream,
    broker: Connection,
    here: SocketAddr,
    end: u64,
    /// From the first fetch that the broker answered with batches.
    ready: Option<Ready>,
}

/// What a request begins with.
struct Asked {
    api: Option<ApiKey>,
    version: i16,
    correlation_id: i32,
    /// What is behind the header, where that is looked at.
    body: Bytes,
}

impl Client {
    fn serve(mut self) -> Result<()> {
        let mut frame = Vec::new();
        while receive(&mut self.stream, &mut frame)? {
            let asked = asked(&frame)?;
            match asked.api {
                Some(ApiKey::Fetch) => self.fetch(&frame, asked)?,
                Some(ApiKey::Metadata) => self.metadata(&frame, asked.version)?,
                _ => send(&mut self.stream, self.broker.exchange(&frame)?)?,
            }
        }
        Ok(())
    }

    fn fetch(&mut self, frame: &[u8], mut asked: Asked) -> Result<()> {
        let request = FetchRequest::decode(&mut asked.body, asked.version)?;
        let partition = request.topics.first().and_then(|t| t.partitions.first());
        let offset = partition.context("a fetch of nothing")?.fetch_offset;
        let offset = u64::try_from(offset)?;
        let left = self.end.saturating_sub(offset);
        if let Some(ready) = self.ready.as_mut().filter(|ready| ready.records <= left) {
            let answer = ready.answer(asked.correlation_id, offset);
            return write_all(&mut self.stream, answer);
        }
        let answer = self.broker.exchange(frame)?;
        if self.ready.is_none() {
            self.ready = Ready::of(answer, asked.version)?;
        }
        send(&mut self.stream, answer)
    }

    /// Hands it on, and puts itself in the broker's place.
    fn metadata(&mut self, frame: &[u8], version: i16) -> Result<()> {
        let mut answer = Bytes::copy_from_slice(self.broker.exchange(frame)?);
        let header_version = MetadataResponse::header_version(version);
        let header = ResponseHeader::decode(&mut answer, header_version)?;
        let mut response = MetadataResponse::decode(&mut answer, version)?;
        for broker in &mut response.brokers {
            broker.host = StrBytes::from_string(self.here.ip().to_string());
            broker.port = self.here.port().into();
        }
        let mut answer = BytesMut::new();
        header.encode(&mut answer, header_version)?;
        response.encode(&mut answer, version)?;
        send(&mut self.stream, &answer)
    }
}

/// Reads a request, its length before it; `false` once the client is gone.
fn receive(client: &mut TcpStream, frame: &mut Vec<u8>) -> Result<bool> {
    let mut prefix = [0; PREFIX];
    match client.read_exact(&mut prefix) {
        Err(e)
            if matches!(
                e.kind(),
                ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
            ) =>
        {
            return Ok(false);
        }
        read => read?,
    }
    let length = usize::try_from(i32::from_be_bytes(prefix))?;
    ensure!(length <= MAX_REQUEST, "a request of {length} bytes");
    frame.clear();
    frame.extend(prefix);
    frame.resize(PREFIX + length, 0);
    client.read_exact(frame.get_mut(PREFIX..).unwrap_or_default())?;
    Ok(true)
}

fn asked(frame: &[u8]) -> Result<Asked> {
    let head = frame.get(PREFIX..).and_then(|body| body.first_chunk::<8>());
    let [k0, k1, v0, v1, c0, c1, c2, c3] = *head.context("a request without a header")?;
    let api = ApiKey::try_from(i16::from_be_bytes([k0, k1])).ok();
    let version = i16::from_be_bytes([v0, v1]);
    let mut body = Bytes::copy_from_slice(frame.get(PREFIX..).unwrap_or_default());
    if api == Some(ApiKey::Fetch) {
        RequestHeader::decode(&mut body, FetchRequest::header_version(version))?;
    }
    Ok(Asked {
        api,
        version,
        correlation_id: i32::from_be_bytes([c0, c1, c2, c3]),
        body,
    })
}

fn send(client: &mut TcpStream, answer: &[u8]) -> Result<()> {
    write_all(client, &with_length(answer)?)
}

/// A client that is gone is noticed when it is read from.
fn write_all(client: &mut TcpStream, bytes: &[u8]) -> Result<()> {
    match client.write_all(bytes) {
        Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => Ok(()),
        written => Ok(written?),
    }
}

fn with_length(answer: &[u8]) -> Result<Vec<u8>> {
    let length = i32::try_from(answer.len())?.to_be_bytes();
    Ok([&length, answer].concat())
}

/// The answer to a fetch, for any offset.
struct Ready {
    /// With its length before it.
    frame: Vec<u8>,
    /// Where each batch begins, and how many records it has.
    batches: Vec<(usize, u64)>,
    records: u64,
}

impl Ready {
    /// From what a broker answered; `None` if it holds no batch.
    fn of(answer: &[u8], version: i16) -> Result<Option<Self>> {
        let whole = Bytes::copy_from_slice(answer);
        let mut rest = whole.clone();
        ResponseHeader::decode(&mut rest, FetchResponse::header_version(version))?;
        let response = FetchResponse::decode(&mut rest, version)?;
        let topic = response.responses.first();
        let partition = topic.and_then(|topic| topic.partitions.first());
        let Some(bytes) = partition.and_then(|partition| partition.records.as_ref()) else {
            return Ok(None);
        };
        // The records are a part of the answer, not a copy.
        let start = PREFIX + bytes.as_ptr().addr() - whole.as_ptr().addr();
        let batches: Vec<_> = batches(bytes)?
            .into_iter()
            .map(|batch| (start + batch.position, batch.records))
            .collect();
        let records = batches.iter().map(|(_, records)| records).sum();
        let frame = with_length(answer)?;
        Ok((records > 0).then_some(Self {
            frame,
            batches,
            records,
        }))
    }

    /// The same with another request's number, and with batches that begin at `offset`. Their checksums
    /// do not cover that.
    fn answer(&mut self, correlation_id: i32, offset: u64) -> &[u8] {
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(place) = self.frame.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
        };
        put(PREFIX, &correlation_id.to_be_bytes());
        let mut base = offset;
        for (at, records) in &self.batches {
            put(*at, &base.to_be_bytes());
            base += records;
        }
        &self.frame
    }
}

/// The stand-in, from outside; killed when dropped.
#[derive(Debug)]
pub(crate) struct StandIn {
    process: Child,
    pub(crate) address: String,
}

impl StandIn {
    /// Starts one for a broker, with a partition that ends at `end`.
    pub(crate) fn start(broker: SocketAddr, end: u64) -> Result<Self> {
        let process = Command::new(std::env::current_exe()?)
            .args(["stand-in", &broker.to_string(), &end.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        // From here on an error ends the process.
        let mut this = Self {
            process,
            address: String::new(),
        };
        let stdout = this.process.stdout.take().context("no output to read")?;
        BufReader::new(stdout).read_line(&mut this.address)?;
        this.address = this.address.trim().to_owned();
        ensure!(!this.address.is_empty(), "the stand-in did not start");
        Ok(this)
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid(self.process.id())
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::Ready;
    use bytes::{BufMut as _, BytesMut};
    use kafka_protocol::messages::FetchResponse;
    use kafka_protocol::messages::fetch_response::{FetchableTopicResponse, PartitionData};
    use kafka_protocol::protocol::Encodable as _;

    /// An answer of version 16 with batches of so many records each.
    fn answer(batches: &[usize]) -> BytesMut {
        let mut records = BytesMut::new();
        for count in batches {
            let values = vec![b"value".as_slice(); *count];
            records.put_slice(&crate::batch::batch(&values).unwrap());
        }
        let partition = PartitionData::default().with_records(Some(records.freeze()));
        let topic = FetchableTopicResponse::default().with_partitions(vec![partition]);
        let response = FetchResponse::default().with_responses(vec![topic]);
        let mut answer = BytesMut::new();
        answer.put_i32(1);
        answer.put_u8(0);
        response.encode(&mut answer, 16).unwrap();
        answer
    }

    #[test]
    fn an_answer_is_the_brokers_but_for_its_number_and_offsets() {
        let original = answer(&[3, 2]);
        let mut ready = Ready::of(&original, 16).unwrap().unwrap();
        assert_eq!(ready.records, 5);
        let at = |ready: &Ready, batch: usize| {
            let start = ready.batches[batch].0;
            u64::from_be_bytes(ready.frame[start..start + 8].try_into().unwrap())
        };
        for (number, offset) in [(7, 40), (8, 45)] {
            let frame = ready.answer(number, offset).to_vec();
            assert_eq!(
                frame[..4],
                u32::try_from(original.len()).unwrap().to_be_bytes()
            );
            assert_eq!(frame[4..8], number.to_be_bytes());
            assert_eq!([at(&ready, 0), at(&ready, 1)], [offset, offset + 3]);
        }
        // With the first number and offsets it is what the broker sent: nothing else was touched.
        for (at, _) in ready.batches.clone() {
            ready.frame[at..at + 8].fill(0);
        }
        ready.frame[4..8].copy_from_slice(&1_i32.to_be_bytes());
        assert_eq!(ready.frame[4..], original[..]);
    }

    #[test]
    fn without_a_batch_nothing_is_ready() {
        assert!(Ready::of(&answer(&[]), 16).unwrap().is_none());
    }
}
