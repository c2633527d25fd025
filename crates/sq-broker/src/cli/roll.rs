//! `sq roll`: how logs went from segment to segment.

use std::io::Write;
use std::process::ExitCode;

use clap::Subcommand;

use super::finish;
use super::topic::{Broker, TopicError, accepted, topic, topic_name};
use crate::protocol::rolls::{DescribeRollsRequest, MOST_ROLLS, RollEntry, TRIGGERS};

/// What `sq roll` can do.
#[derive(Clone, Debug, Subcommand)]
pub enum RollCommand {
    /// Show the last rolls of a topic's partitions, as the broker remembers them since it was started
    ///
    /// A line is one roll, and its columns are set apart by tabs. Times are in µs but for the first, and -
    /// is what is not known:
    ///
    /// - the partition;
    /// - when appends went to the new segment, in ms since 1970, and that one's first offset;
    /// - what ended the old segment (size, age, asked, failure), and its size then in bytes;
    /// - its size at the soft mark, and how long before the switch that was passed;
    /// - how long before the switch a successor was asked for, and was ready;
    /// - how long after the switch the old segment's end was committed;
    /// - by how many bytes the old segment had passed its cap;
    /// - how long appends waited for this roll;
    /// - from the last acknowledgement in the old segment to the first in the new one, and until a reader
    ///   at the tail was told of that record, beside the median between any two acknowledgements;
    /// - the ids of both segments.
    #[command(verbatim_doc_comment)]
    Log {
        /// The topic.
        topic: String,
        /// This partition only.
        #[arg(long)]
        partition: Option<i32>,
        /// How many rolls of each partition, at most.
        #[arg(long, value_name = "COUNT", default_value_t = 20,
            value_parser = clap::value_parser!(i32).range(1..=MOST_ROLLS as i64))]
        last: i32,
        /// Where to ask.
        #[command(flatten)]
        broker: Broker,
    },
}

impl RollCommand {
    /// Does it, with output to standard output and errors to standard error.
    pub async fn run(self) -> ExitCode {
        let mut out = Vec::new();
        let result = self.execute(&mut out).await;
        finish(&out, result)
    }

    /// Does it, with output to `out`.
    ///
    /// # Errors
    /// [`TopicError`].
    pub async fn execute(self, out: &mut impl Write) -> Result<(), TopicError> {
        let Self::Log {
            topic: name,
            partition,
            last,
            broker,
        } = self;
        let partitions = if let Some(partition) = partition {
            vec![partition]
        } else {
            let all = topic(&name, &broker).await?.partitions;
            all.iter().map(|p| p.partition_index).collect()
        };
        writeln!(
            out,
            "partition\tswitched ms\tend\ttrigger\tbytes\tsoft mark bytes\tsoft mark before\tasked before\tready before\tsealed after\t\
             overrun\twaited\tproducer gap\ttail gap\tusual gap\tfrom\tto"
        )?;
        let mut client = broker.connect().await?;
        for partition in partitions {
            let request = DescribeRollsRequest {
                topic: topic_name(&name),
                partition,
                most: last,
            };
            let answer = client.call_own(&request).await?;
            accepted(&format!("{name}/{partition}"), answer.error_code, None)?;
            for roll in &answer.rolls {
                write_roll(partition, roll, out)?;
            }
        }
        Ok(())
    }
}

fn write_roll(partition: i32, roll: &RollEntry, out: &mut impl Write) -> Result<(), TopicError> {
    let trigger = usize::try_from(roll.trigger).ok();
    let trigger = trigger.and_then(|place| TRIGGERS.get(place));
    let columns = [
        partition.to_string(),
        roll.switch_wall_ms.to_string(),
        roll.end.to_string(),
        (*trigger.unwrap_or(&"?")).to_owned(),
        roll.switch_bytes.to_string(),
        roll.soft_mark_bytes.to_string(),
        known(roll.soft_mark_us),
        known(roll.request_us),
        known(roll.ready_us),
        known(roll.sealed_us),
        roll.overrun_bytes.to_string(),
        roll.waited_us.to_string(),
        known(roll.producer_gap_us),
        known(roll.tail_gap_us),
        known(roll.usual_gap_us),
        format!("{:016x}", roll.from),
        format!("{:016x}", roll.to),
    ];
    writeln!(out, "{}", columns.join("\t"))?;
    Ok(())
}

fn known(number: i64) -> String {
    match number {
        ..0 => "-".to_owned(),
        known => known.to_string(),
    }
}
