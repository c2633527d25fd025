//! `DescribeRolls`: sq's own, for `sq roll log`.

use std::time::Duration;

use sq_roll::{RollRecord, Trigger};
use sq_sim::FileSystem;

use super::unavailable;
use crate::broker::Broker;
use crate::protocol::ResponseError;
use crate::protocol::rolls::{DescribeRollsRequest, DescribeRollsResponse, MOST_ROLLS, RollEntry};

pub(super) async fn handle<F: FileSystem>(
    broker: &Broker<F>,
    request: &DescribeRollsRequest,
) -> DescribeRollsResponse {
    let refused = |error: ResponseError| DescribeRollsResponse {
        error_code: error.code(),
        rolls: Vec::new(),
    };
    let current = broker.topics.current();
    let topic = current.by_name(&request.topic);
    let Some(partition) = topic.and_then(|topic| topic.partition(request.partition)) else {
        return refused(ResponseError::UnknownTopicOrPartition);
    };
    let records = match partition.rolls().await {
        Ok(records) => records,
        Err(why) => return refused(unavailable(&why)),
    };
    let most = usize::try_from(request.most).unwrap_or(0).min(MOST_ROLLS);
    let last = records.iter().skip(records.len().saturating_sub(most));
    DescribeRollsResponse {
        error_code: 0,
        rolls: last.map(|record| entry(record)).collect(),
    }
}

fn entry(record: &RollRecord) -> RollEntry {
    let before_the_switch = |at| micros(record.switch.at.saturating_sub(at));
    let known = |time: Option<Duration>| time.map_or(-1, micros);
    let sealed = record
        .sealed
        .map(|sealed| sealed.at.saturating_sub(record.switch.at));
    RollEntry {
        from: record.from.0.cast_signed(),
        to: record.to.0.cast_signed(),
        end: number(record.end),
        // In the order of `TRIGGERS`.
        trigger: match record.trigger {
            Trigger::Size => 0,
            Trigger::Age => 1,
            Trigger::Seal => 2,
            Trigger::Failure => 3,
        },
        switch_wall_ms: number(record.switch_wall_ms),
        soft_mark_us: before_the_switch(record.soft_mark.at),
        request_us: before_the_switch(record.request.at),
        ready_us: before_the_switch(record.ready.at),
        sealed_us: known(sealed),
        soft_mark_bytes: number(record.soft_mark.bytes),
        switch_bytes: number(record.switch.bytes),
        overrun_bytes: number(record.overrun_bytes),
        waited_us: micros(record.waited),
        producer_gap_us: known(record.producer_gap),
        tail_gap_us: known(record.tail_gap),
        usual_gap_us: known(record.usual_gap),
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

fn number(unsigned: u64) -> i64 {
    i64::try_from(unsigned).unwrap_or(i64::MAX)
}
