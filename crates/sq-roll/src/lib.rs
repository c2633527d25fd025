//! When a segment of a log gives way to the next.
//!
//! A log that is cut into segments has to roll: find a place for the next segment, make its files,
//! switch. [`Roll`] hides that under the tail of the segment being filled. At a soft mark it asks for
//! a successor and goes on writing; at the cap it switches, in memory, to a successor that is ready; if
//! none is, it overruns the cap by a bounded amount before it refuses an append. The old segment's end
//! is its real end, and the successor's base is bound at that moment.
//!
//! ```text
//! Filling ──soft mark──▶ Preparing ──ready──▶ Armed ──cap, age or seal──▶ (switch) ──▶ Filling on N+1
//!    ▲                      │ failed: again after a pause, under the same id
//!    └──── abandoned ◀──────┘
//! Preparing at the cap: Overrun ──▶ Backpressure: a retriable error
//! ```
//!
//! It is a state machine: events in, actions out. What it asks for is done elsewhere, and what comes
//! back may be late, repeated or lost: answers are matched by segment and epoch ([`Ticket`]), and
//! requests are repeated word for word.
//!
//! One broker, whose successors are ready at once and whose records are committed when they are
//! durable:
//!
//! ```
//! use std::time::Duration;
//! use sq_roll::{Action, Epoch, Event, Limits, Patience, Roll, SegmentId, Start};
//!
//! let mut ids = (2..).map(SegmentId);
//! let mut draw = || ids.next().unwrap();
//! let now = Duration::ZERO;
//! let start = Start::empty(Epoch(1), SegmentId(1), 0);
//! let mut roll = Roll::new(start, Limits::bytes(1000), Patience::default(), now);
//!
//! let mut written = Vec::new();
//! for _ in 0..10 {
//!     let mut events = vec![Event::Append { bytes: 300, records: 1 }];
//!     while let Some(event) = events.pop() {
//!         for action in roll.on(now, event, &mut draw) {
//!             match action {
//!                 Action::Write { segment, offset } => {
//!                     written.push((segment.0, offset)); // ... and synced.
//!                     events.push(Event::Durable { segment, end: offset + 1 });
//!                 }
//!                 Action::Request { successor, .. } => events.push(Event::Ready { successor }),
//!                 Action::Seal { segment, .. } => events.push(Event::Sealed { segment }),
//!                 Action::Refuse(refusal) => panic!("{refusal}"),
//!                 _ => {}
//!             }
//!         }
//!     }
//! }
//! // Three of 300 bytes pass the soft mark at 900, and the fourth would pass the cap.
//! let segments: Vec<u64> = written.iter().map(|(segment, _)| *segment).collect();
//! assert_eq!(segments, [1, 1, 1, 2, 2, 2, 3, 3, 3, 4]);
//! assert!(written.iter().map(|(_, offset)| *offset).eq(0..10));
//! assert_eq!(roll.committed(), 10);
//! ```
//!
//! # Where the marks are
//! [`Slack`] places the soft mark: far enough below the cap to cover a preparation, as long as those take
//! ([`Latencies`]), at the rate at which the segment is written, and no further; or at a fixed fraction
//! ([`SoftMark`]). It lowers each segment's cap by a seeded share, so that partitions that fill together
//! don't roll together. [`Preparations`] keeps those of a node to a number at a time. They are pure too:
//! whoever drives a [`Roll`] hands it [`Slack::limits`] with [`Roll::set_limits`] before an append,
//! and asks [`Preparations`] before it does what [`Action::Request`] says.
//!
//! # A log that rolls so
//! [`RollingWriter`] is a [`Head`](sq_storage::log::Head) of sq-storage's log that goes by all of that, with
//! a [`Driver`] beside it. Where a broker's metadata plug in is a [`SuccessorSource`]; [`LocalSource`] is for
//! a log of files and nothing else. `examples/embed.rs` is a program that has one.
//!
//! # What it is not
//! Not a consensus protocol: who leads, in which epoch, and what a failover keeps is decided by a
//! metadata log that applies five commands under guards. What the leader owes it is kept here:
//! 1. a segment is written in one epoch, and a deposed leader stops ([`Event::Fenced`]; a replica's
//!    side is [`Fence`]);
//! 2. an offset is acknowledged when all replicas of its segment have it durable and every earlier
//!    offset is acknowledged;
//! 3. only a successor whose placement is committed, and that was never asked to be abandoned, is
//!    switched to. The old segment ends at the last offset, or, where a replica of it failed, at the
//!    first that is not acknowledged: what is past it goes out again on the successor, at the same
//!    offsets;
//! 4. the seal is asked for once the old segment is committed to its end, and repeated until it is
//!    committed; from then on its successor is never abandoned;
//! 5. where a replica of the old segment fails before that, the successor is abandoned, the old segment
//!    is active again, nothing past its end is acknowledged until the abandonment is committed, and
//!    another successor is asked for.
//!
//! # How that is tested
//! `tests/it/slack/` runs loads and delays of many kinds through all of the above, in virtual time.
//! `tests/it/model/` explores this very code, exhaustively within bounds, with a model of replicas, of
//! the metadata's guards and of failover, where whatever is sent may arrive late, twice or never, and
//! brokers crash. `cargo test -p sq-roll -- --nocapture` prints how many states that were. Each guard is
//! taken away once, to show that the search notices. `tests/it/writer/` runs the writer on a simulated disk
//! in virtual time: what a roll costs, exactly, and random failures of everything around it.

#[cfg(feature = "mutants")]
pub mod mutants;
#[cfg(not(feature = "mutants"))]
#[expect(dead_code, unreachable_pub, reason = "every guard is in place")]
mod mutants;

mod action;
mod event;
mod fence;
mod id;
mod limits;
mod node;
mod roll;
mod rolling;
mod schedule;
mod slack;
mod source;

pub use action::{Action, Refusal, Switch, Trigger};
pub use event::{Event, PrepareFailure};
pub use fence::Fence;
pub use id::{Epoch, SegmentId, Ticket};
pub use limits::{Limits, Patience};
pub use node::Node;
pub use roll::{Roll, Start, State};
pub use rolling::{Driver, Mark, Mode, RollHandle, RollRecord, RollSettings, RollingWriter};
pub use schedule::Preparations;
pub use slack::{InvalidSoftMark, Latencies, Slack, SlackSettings, SoftMark};
pub use source::{LocalSource, Request, Seal, SourceError, SuccessorSource};
