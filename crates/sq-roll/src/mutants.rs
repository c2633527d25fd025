//! The state machine without one of its guards: for tests that show that they would notice.

/// A guard of [`Roll`](crate::Roll) or [`Fence`](crate::Fence).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Guard {
    /// Only a successor that is ready is switched to.
    Readiness,
    /// A successor's base is bound at the switch.
    BaseAtSwitch,
    /// A request is repeated under the id that it had.
    SameId,
    /// A deposed leader is kept out, and stops.
    Fence,
    /// A successor that can't be used is abandoned.
    CleanUp,
    /// A seal is repeated with the end that it had.
    SameEnd,
    /// An old segment whose replica failed before the seal was asked for is reopened.
    Reopen,
    /// Nothing on the successor is acknowledged before the old segment is whole.
    Order,
    /// The seal is asked for only when the old segment is committed to its end.
    SealWhenWhole,
    /// Once a seal was asked for, its successor is never abandoned.
    SealIsFinal,
    /// After a switch was taken back, nothing past the old end is acknowledged before the abandonment
    /// is committed.
    Hold,
    /// A successor that was asked to be abandoned is never switched to.
    Abandoned,
    /// A segment never ends below what is acknowledged.
    CutAtCommitted,
}
