//! The real binary: how it starts, how it ends, and what is there when it comes back.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use kafka_protocol::messages::DeleteRecordsRequest;
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use rustix::process::{Pid, Signal, kill_process};
use sq_sim::{Clock, SystemClock};
use tempfile::TempDir;

use crate::support::{Batch, Client, FETCH, LIST_OFFSETS, block_on, fetch, metadata, name};

struct Process {
    child: Child,
    address: SocketAddr,
    greeting: Vec<String>,
}

fn sq(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sq"));
    command
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

impl Process {
    fn start(data_dir: &Path) -> Self {
        let data_dir = data_dir.to_str().unwrap();
        let arguments = ["serve", "--listen", "127.0.0.1:0", "--data-dir", data_dir];
        Self::run(sq(&arguments).stderr(Stdio::null()))
    }

    fn run(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut greeting = Vec::new();
        for _ in 0..3 {
            let mut line = String::new();
            output.read_line(&mut line).unwrap();
            greeting.push(line);
        }
        let address = greeting[0]
            .split_whitespace()
            .nth(3)
            .unwrap()
            .parse()
            .unwrap();
        Self {
            child,
            address,
            greeting,
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn wait(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A test that failed leaves no broker behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn output(arguments: &[&str]) -> Output {
    sq(arguments).output().unwrap()
}

#[test]
fn it_says_where_it_listens_and_how_to_try_it() {
    let dir = TempDir::new().unwrap();
    let mut process = Process::start(dir.path());
    let address = process.address.to_string();
    assert!(process.greeting[0].contains(&address));
    assert!(process.greeting[1].contains(dir.path().to_str().unwrap()));
    assert!(process.greeting[2].contains("kcat") && process.greeting[2].contains(&address));
    process.signal(Signal::TERM);
    assert_eq!(process.wait(), Some(0));
}

#[test]
fn a_signal_drains_syncs_and_ends_with_0() {
    for signal in [Signal::TERM, Signal::INT] {
        let dir = TempDir::new().unwrap();
        let mut process = Process::start(dir.path());
        let address = process.address;
        block_on(async {
            let mut client = Client::connect(address).await;
            client.call(12, &metadata(Some(&["t"]))).await;
            client.append("t", Batch::of(3).bytes()).await;
            // One that waits at the end of the log, for an hour.
            client
                .send(FETCH, &fetch("t", 0, 3).with_max_wait_ms(3_600_000))
                .await;
            // It has begun once a request behind it is answered on another connection.
            let mut other = Client::connect(address).await;
            assert_eq!(other.end("t").await, 3);
            process.signal(signal);
            let answered = client.receive_frame().await;
            assert!(answered.is_none_or(|frame| !frame.is_empty()));
        });
        assert_eq!(process.wait(), Some(0));
        let mut again = Process::start(dir.path());
        let address = again.address;
        block_on(async {
            let mut client = Client::connect(address).await;
            assert_eq!(client.fetch("t", 0).await.1.len(), 3);
            assert_eq!(client.append("t", Batch::of(1).bytes()).await, 3);
        });
        again.signal(signal);
        assert_eq!(again.wait(), Some(0));
    }
}

#[test]
fn what_was_acknowledged_before_a_kill_is_there_after_it() {
    let dir = TempDir::new().unwrap();
    let mut end = 0;
    for _ in 0..3 {
        let mut process = Process::start(dir.path());
        let address = process.address;
        block_on(async {
            let mut client = Client::connect(address).await;
            client.call(12, &metadata(Some(&["t"]))).await;
            assert_eq!(client.end("t").await, end);
            for _ in 0..20 {
                assert_eq!(client.append("t", Batch::of(2).bytes()).await, end);
                end += 2;
            }
            let response = client.call(FETCH, &fetch("t", 0, 0)).await;
            let records = response.responses[0].partitions[0].records.clone();
            let offsets: Vec<i64> = crate::support::values(records)
                .into_iter()
                .map(|v| v.0)
                .collect();
            assert!(offsets.into_iter().eq(0..end));
        });
        process.signal(Signal::KILL);
        assert_eq!(process.wait(), None);
    }
}

#[test]
fn what_was_deleted_before_a_kill_is_gone_after_it() {
    // The watermark that was answered holds, although nothing but the answer came between it and the kill.
    let dir = TempDir::new().unwrap();
    let mut deleted = -1;
    for round in 0..6 {
        let mut process = Process::start(dir.path());
        let address = process.address;
        block_on(async {
            let mut client = Client::connect(address).await;
            client.call(12, &metadata(Some(&["t"]))).await;
            let earliest = client.list_offsets(LIST_OFFSETS, "t", -2).await;
            assert_eq!(earliest.offset, deleted.max(0));
            let end = client.end("t").await;
            assert_eq!(client.append("t", Batch::of(5).bytes()).await, end);
            // Within the batch, or all there is.
            let to = if round % 2 == 0 { end + 3 } else { -1 };
            let partition = DeleteRecordsPartition::default().with_offset(to);
            let topic = DeleteRecordsTopic::default().with_name(name("t"));
            let request = DeleteRecordsRequest::default()
                .with_topics(vec![topic.with_partitions(vec![partition])])
                .with_timeout_ms(10_000);
            let answer = client.call(2, &request).await.topics[0].partitions[0].clone();
            let expected = if to == -1 { end + 5 } else { to };
            assert_eq!((answer.error_code, answer.low_watermark), (0, expected));
            deleted = expected;
            process.signal(Signal::KILL);
        });
        assert_eq!(process.wait(), None);
    }
}

#[test]
fn it_may_open_as_many_files_as_the_system_allows() {
    // With the 1,024 that many systems begin with, a broker of some hundred partitions ran out.
    let dir = TempDir::new().unwrap();
    let script = format!(
        "ulimit -S -n 200 && exec {} serve --listen 127.0.0.1:0 --data-dir {}",
        env!("CARGO_BIN_EXE_sq"),
        dir.path().display()
    );
    let mut command = Command::new("sh");
    command
        .args(["-c", &script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut process = Process::run(&mut command);
    let limits = format!("/proc/{}/limits", process.child.id());
    let file = rustix::fs::open(
        &limits,
        rustix::fs::OFlags::RDONLY,
        rustix::fs::Mode::empty(),
    );
    let mut text = String::new();
    std::fs::File::from(file.unwrap())
        .read_to_string(&mut text)
        .unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    let numbers: Vec<&str> = line.split_whitespace().skip(3).take(2).collect();
    assert_eq!(numbers[0], numbers[1], "{line}");
    process.signal(Signal::TERM);
    assert_eq!(process.wait(), Some(0));
}

#[test]
fn a_second_process_on_the_same_directory_is_refused() {
    let dir = TempDir::new().unwrap();
    let data_dir = dir.path().to_str().unwrap();
    let mut first = Process::start(dir.path());
    let second = output(&["serve", "--listen", "127.0.0.1:0", "--data-dir", data_dir]);
    assert_eq!(second.status.code(), Some(1));
    let message = String::from_utf8(second.stderr).unwrap();
    assert!(message.contains("in use by another process"), "{message}");
    let address = first.address;
    block_on(async {
        let mut client = Client::connect(address).await;
        client.call(12, &metadata(Some(&["t"]))).await;
        client.append("t", Batch::of(1).bytes()).await;
    });
    // Nor does a kill leave the lock behind.
    first.signal(Signal::KILL);
    first.wait();
    let mut third = Process::start(dir.path());
    third.signal(Signal::TERM);
    assert_eq!(third.wait(), Some(0));
}

#[test]
fn settings_that_are_not_right_are_refused_with_the_reason() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("sq.toml");
    let data_dir = dir.path().join("data");
    let (file, data_dir) = (file.to_str().unwrap(), data_dir.to_str().unwrap());
    let write = |text: &str| {
        let flags =
            rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CREATE | rustix::fs::OFlags::TRUNC;
        let handle = rustix::fs::open(file, flags, rustix::fs::Mode::RWXU).unwrap();
        rustix::io::write(&handle, text.as_bytes()).unwrap();
    };
    let refused = |arguments: &[&str], reason: &str| {
        let output = output(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains(reason), "{message}");
    };
    write("listne = \"127.0.0.1:0\"");
    refused(
        &["serve", "--config", file, "--data-dir", data_dir],
        "listen",
    );
    refused(&["serve", "--config", "/no/such/file"], "/no/such/file");
    refused(
        &["serve", "--listen", "0.0.0.0:0", "--data-dir", data_dir],
        "advertise",
    );
    refused(
        &["serve", "--advertise", "0.0.0.0:1", "--data-dir", data_dir],
        "0.0.0.0",
    );
    write("listen = \"192.0.2.1:1\"");
    refused(
        &["serve", "--config", file, "--data-dir", data_dir],
        "can't listen on 192.0.2.1:1",
    );
}

#[test]
fn a_slow_metadata_log_is_for_tests_and_has_to_be_asked_for_twice() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("sq.toml");
    let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CREATE;
    let handle = rustix::fs::open(&file, flags, rustix::fs::Mode::RWXU).unwrap();
    let text = b"listen = \"127.0.0.1:0\"\n[meta]\ncommit_delay_ms = 700";
    rustix::io::write(&handle, text).unwrap();
    let data_dir = dir.path().join("data");
    let mut arguments = vec!["serve", "--config", file.to_str().unwrap()];
    arguments.extend(["--data-dir", data_dir.to_str().unwrap()]);
    let refused = output(&arguments);
    assert_eq!(refused.status.code(), Some(1));
    let message = String::from_utf8(refused.stderr).unwrap();
    assert!(message.contains("meta.commit_delay_ms"), "{message}");
    assert!(message.contains("--unsafe-test-settings"), "{message}");

    arguments.push("--unsafe-test-settings");
    let process = Process::run(sq(&arguments).stderr(Stdio::null()));
    block_on(async {
        let mut client = Client::connect(process.address).await;
        let began = SystemClock.now();
        client.call(12, &metadata(Some(&["t"]))).await;
        assert!(began.elapsed() >= Duration::from_millis(700));
        // Appends wait for no commit.
        assert_eq!(client.append("t", Batch::of(1).bytes()).await, 0);
    });
}

#[test]
fn the_last_rolls_of_a_topic_are_shown() {
    let dir = TempDir::new().unwrap();
    let process = Process::start(dir.path());
    let address = process.address.to_string();
    let ask = |arguments: &[&str]| {
        let arguments = [arguments, &["--bootstrap", &address]].concat();
        let output = output(&arguments);
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code(), text)
    };
    let create = ["topic", "create", "t", "--partitions", "2", "--config"];
    let created = ask(&[&create[..], &["segment.bytes=4096"]].concat());
    assert_eq!(created.0, Some(0), "{}", created.1);
    let mut end = 0;
    let mut rolls = Vec::new();
    // What a roll leaves to be done is done behind the appends, and then the roll is shown.
    while rolls.len() < 3 {
        block_on(async {
            let mut client = Client::connect(process.address).await;
            for _ in 0..10 {
                assert_eq!(
                    client.append("t", Batch::of(1).sized(500).bytes()).await,
                    end
                );
                end += 1;
            }
        });
        let (code, text) = ask(&["roll", "log", "t"]);
        assert_eq!(code, Some(0), "{text}");
        let rows = text.lines().map(|line| line.split('\t').map(str::to_owned));
        let mut rows: Vec<Vec<String>> = rows.map(Iterator::collect).collect();
        let titles = rows.remove(0);
        assert!(rows.iter().all(|row| row.len() == titles.len()), "{text}");
        rolls = rows;
        assert!(end < 1_000, "{text}");
    }
    let column = |row: &[String], n: usize| row[n].parse::<i64>().unwrap();
    let [.., from, to] = &rolls[0][..] else {
        panic!("{rolls:?}")
    };
    assert_ne!(from, to);
    for pair in rolls.windows(2) {
        assert!(column(&pair[0], 1) <= column(&pair[1], 1), "by time");
        assert!(column(&pair[0], 2) < column(&pair[1], 2), "and by offset");
        let [.., to] = &pair[0][..] else { panic!() };
        let [.., from, _] = &pair[1][..] else {
            panic!()
        };
        assert_eq!(to, from, "one goes on where the other ended");
    }
    for roll in &rolls {
        assert_eq!((column(roll, 0), roll[3].as_str()), (0, "size"));
        assert!((1..end).contains(&column(roll, 2)));
        assert!((1..=2 * 4096).contains(&column(roll, 4)));
    }
    let one = ask(&["roll", "log", "t", "--last", "1", "--partition", "0"]).1;
    assert_eq!(one.lines().count(), 2, "{one}");
    let none = ask(&["roll", "log", "t", "--partition", "1"]).1;
    assert_eq!(none.lines().count(), 1, "{none}");
    for arguments in [
        &["roll", "log", "u"][..],
        &["roll", "log", "t", "--partition", "2"],
    ] {
        let (code, text) = ask(arguments);
        assert_eq!(code, Some(1));
        assert!(text.contains("UnknownTopicOrPartition"), "{text}");
    }
}

#[test]
fn damaged_metadata_stops_the_start_and_removes_nothing() {
    let dir = TempDir::new().unwrap();
    let data_dir = dir.path().to_str().unwrap();
    let mut process = Process::start(dir.path());
    let address = process.address;
    block_on(async {
        let mut client = Client::connect(address).await;
        client.call(12, &metadata(Some(&["t"]))).await;
        client.append("t", Batch::of(3).bytes()).await;
    });
    process.signal(Signal::TERM);
    assert_eq!(process.wait(), Some(0));
    let meta = dir.path().join("@raft/log/0/00000000000000000000.wal");
    let segment = dir.path().join("t/0/00000000000000000000.wal");
    let open =
        |path: &Path, flags| rustix::fs::open(path, flags, rustix::fs::Mode::empty()).unwrap();
    let mut before = Vec::new();
    std::fs::File::from(open(&meta, rustix::fs::OFlags::RDONLY))
        .read_to_end(&mut before)
        .unwrap();

    for damage in 0..2 {
        let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::TRUNC;
        let damaged = if damage == 0 {
            Vec::new()
        } else {
            let mut bent = before.clone();
            bent[100] ^= 1;
            bent
        };
        rustix::io::write(open(&meta, flags), &damaged).unwrap();
        let refused = output(&["serve", "--listen", "127.0.0.1:0", "--data-dir", data_dir]);
        assert_eq!(refused.status.code(), Some(1));
        let message = String::from_utf8(refused.stderr).unwrap();
        assert!(message.contains("@raft"), "{message}");
        open(&segment, rustix::fs::OFlags::RDONLY);
    }
    rustix::io::write(
        open(
            &meta,
            rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::TRUNC,
        ),
        &before,
    )
    .unwrap();
    let process = Process::start(dir.path());
    let address = process.address;
    block_on(async {
        assert_eq!(
            Client::connect(address).await.fetch("t", 0).await.1.len(),
            3
        );
    });
}
