//! The storage under openraft, and openraft on it.

mod clients;
mod crashes;
mod faults;
mod lives;
mod messages;
mod reopening;
pub(crate) mod runtime;
mod suite;
mod support;
mod voters;
