//! Many messages with one call, which the safe interface does not have: taken one by one, each goes
//! through an allocation and two locks, and the measure would be of those.

#![expect(
    unsafe_code,
    reason = "a call of the C library that has no safe counterpart"
)]

use std::ptr::{self, NonNull};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rdkafka::bindings as c;
use rdkafka::consumer::{BaseConsumer, Consumer as _};

/// Messages of one call.
const AT_A_TIME: usize = 10_000;

/// What a consumer has fetched.
pub(super) struct Messages<'a> {
    queue: NonNull<c::rd_kafka_queue_t>,
    taken: Vec<*mut c::rd_kafka_message_t>,
    /// The queue is the consumer's.
    _consumer: &'a BaseConsumer,
}

impl<'a> Messages<'a> {
    pub(super) fn of(consumer: &'a BaseConsumer) -> Result<Self> {
        let client = consumer.client().native_ptr();
        // SAFETY: the client is alive for as long as `consumer` is borrowed.
        let queue = unsafe { c::rd_kafka_queue_get_consumer(client) };
        Ok(Self {
            queue: NonNull::new(queue).context("no queue to take messages from")?,
            taken: vec![ptr::null_mut(); AT_A_TIME],
            _consumer: consumer,
        })
    }

    /// Waits for messages and gives the offset and the value's length of each to `each`.
    pub(super) fn take(
        &mut self,
        patience: Duration,
        mut each: impl FnMut(i64, usize) -> Result<()>,
    ) -> Result<()> {
        let wait_ms = i32::try_from(patience.as_millis())?;
        // SAFETY: the queue is ours until dropped, and there is room for so many pointers.
        let count = unsafe {
            c::rd_kafka_consume_batch_queue(
                self.queue.as_ptr(),
                wait_ms,
                self.taken.as_mut_ptr(),
                self.taken.len(),
            )
        };
        let count = usize::try_from(count).context("no messages can be taken")?;
        let mut outcome = Ok(());
        for message in self.taken.iter().take(count) {
            // SAFETY: the call before has set so many pointers, each to a message that is ours.
            let (error, offset, len) = unsafe {
                let message = &**message;
                (message.err, message.offset, message.len)
            };
            // SAFETY: the message is ours, and is not used again.
            unsafe { c::rd_kafka_message_destroy(*message) };
            if outcome.is_ok() {
                outcome = match error {
                    c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => each(offset, len),
                    error => Err(anyhow::anyhow!("a message brings error {error:?}")),
                };
            }
        }
        if count == 0 {
            bail!("nothing came for {patience:?}");
        }
        outcome
    }
}

impl Drop for Messages<'_> {
    fn drop(&mut self) {
        // SAFETY: it is ours, and is not used again.
        unsafe { c::rd_kafka_queue_destroy(self.queue.as_ptr()) };
    }
}
