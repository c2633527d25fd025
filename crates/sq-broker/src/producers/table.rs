//! The producers of one partition, as its log shows them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use super::{ProducerStamp, sequence};

/// How many batches of a producer are remembered: as many as an idempotent client may have in
/// flight (KIP-98).
pub(super) const BATCHES_PER_PRODUCER: usize = 5;

/// One batch that is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchEntry {
    /// The sequence of its first record.
    pub first_sequence: i32,
    /// The sequence of its last record.
    pub last_sequence: i32,
    /// The offset of its first record.
    pub base_offset: u64,
}

/// How much is remembered.
#[derive(Clone, Copy, Debug)]
pub struct ProducerLimits {
    /// A producer that wrote nothing for this long is forgotten.
    pub expiry: Duration,
    /// At most so many producers; beyond it, the one that wrote least recently is forgotten.
    pub max_producers: usize,
}

impl Default for ProducerLimits {
    /// A day, as Kafka's `producer.id.expiration.ms`, and ten thousand producers (two megabytes).
    fn default() -> Self {
        Self {
            expiry: Duration::from_hours(24),
            max_producers: 10_000,
        }
    }
}

/// One producer's last batches, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Producer {
    pub(super) epoch: i16,
    pub(super) batches: VecDeque<BatchEntry>,
    /// Set while the log holds no batch of this epoch and a first one failed: the sequence that has
    /// to come before any other.
    pub(super) awaited: Option<i32>,
    /// Wall milliseconds of the last append.
    pub(super) last_append_ms: u64,
    /// The producer's key in the order of appends.
    pub(super) tick: u64,
}

/// The producers of one partition.
#[derive(Clone, Debug)]
pub struct ProducerTable {
    limits: ProducerLimits,
    producers: HashMap<i64, Producer>,
    /// Who wrote when, the longest ago first.
    order: BTreeMap<u64, i64>,
    next_tick: u64,
}

impl ProducerTable {
    /// A table that knows nobody.
    pub fn new(limits: ProducerLimits) -> Self {
        Self {
            limits,
            producers: HashMap::new(),
            order: BTreeMap::new(),
            next_tick: 0,
        }
    }

    /// How many producers are remembered.
    pub fn len(&self) -> usize {
        self.producers.len()
    }

    /// Whether nobody is remembered.
    pub fn is_empty(&self) -> bool {
        self.producers.is_empty()
    }

    /// Takes in a batch that is in the log at `base_offset`. Batches come in the log's order.
    pub fn record(&mut self, batch: &ProducerStamp, base_offset: u64, append_ms: u64) {
        let entry = BatchEntry {
            first_sequence: batch.first_sequence,
            last_sequence: batch.last_sequence(),
            base_offset,
        };
        let mut producer = self
            .take(batch.producer_id)
            .unwrap_or_else(|| Producer::new(batch.epoch));
        producer.push(batch.epoch, entry);
        producer.last_append_ms = append_ms;
        self.put(batch.producer_id, producer);
    }

    /// Notes that a batch could not be stored. A producer that is otherwise unknown has to send it
    /// again before a later one: its pipeline would else leave a gap where the failed batch was.
    pub fn record_failure(&mut self, batch: &ProducerStamp, now_ms: u64) {
        if self.get(batch.producer_id, now_ms).is_some() {
            return;
        }
        self.forget(batch.producer_id);
        let mut producer = Producer::new(batch.epoch);
        producer.awaited = Some(batch.first_sequence);
        producer.last_append_ms = now_ms;
        self.put(batch.producer_id, producer);
    }

    /// Forgets who wrote nothing for too long. Costs nothing while there is nobody to forget.
    pub fn expire(&mut self, now_ms: u64) {
        while let Some((_, id)) = self.order.first_key_value() {
            let id = *id;
            if self
                .producers
                .get(&id)
                .is_some_and(|p| !self.is_expired(p, now_ms))
            {
                return;
            }
            self.forget(id);
        }
    }

    pub(super) fn get(&self, producer_id: i64, now_ms: u64) -> Option<&Producer> {
        self.producers
            .get(&producer_id)
            .filter(|p| !self.is_expired(p, now_ms))
    }

    /// The producers with the one that wrote longest ago first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (i64, &Producer)> {
        self.order
            .values()
            .filter_map(|id| self.producers.get_key_value(id))
            .map(|(id, p)| (*id, p))
    }

    pub(super) fn put(&mut self, producer_id: i64, mut producer: Producer) {
        self.forget(producer_id);
        while self.producers.len() >= self.limits.max_producers.max(1) {
            let Some((_, oldest)) = self.order.pop_first() else {
                break;
            };
            self.producers.remove(&oldest);
        }
        producer.tick = self.next_tick;
        self.next_tick += 1;
        self.order.insert(producer.tick, producer_id);
        self.producers.insert(producer_id, producer);
    }

    fn take(&mut self, producer_id: i64) -> Option<Producer> {
        let producer = self.producers.remove(&producer_id)?;
        self.order.remove(&producer.tick);
        Some(producer)
    }

    fn forget(&mut self, producer_id: i64) {
        self.take(producer_id);
    }

    fn is_expired(&self, producer: &Producer, now_ms: u64) -> bool {
        // A clock that was set back makes nobody older.
        let idle_ms = now_ms.saturating_sub(producer.last_append_ms);
        u128::from(idle_ms) >= self.limits.expiry.as_millis()
    }
}

impl Producer {
    pub(super) fn new(epoch: i16) -> Self {
        Self {
            epoch,
            batches: VecDeque::new(),
            awaited: None,
            last_append_ms: 0,
            tick: 0,
        }
    }

    /// Takes in a batch. Another epoch begins anew; a gap is taken as it is, since the log is right.
    pub(super) fn push(&mut self, epoch: i16, entry: BatchEntry) {
        if epoch != self.epoch {
            self.epoch = epoch;
            self.batches.clear();
        }
        self.awaited = None;
        if self.batches.len() == BATCHES_PER_PRODUCER {
            self.batches.pop_front();
        }
        self.batches.push_back(entry);
    }

    /// The batch with exactly these sequences, if it is remembered.
    pub(super) fn find(&self, first_sequence: i32, last_sequence: i32) -> Option<BatchEntry> {
        self.batches
            .iter()
            .find(|b| b.first_sequence == first_sequence && b.last_sequence == last_sequence)
            .copied()
    }

    /// The sequence that the next batch of this epoch must begin with; `None` if any will do.
    pub(super) fn expected(&self) -> Option<i32> {
        self.batches
            .back()
            .map(|b| sequence::next(b.last_sequence))
            .or(self.awaited)
    }
}
