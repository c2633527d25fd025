use std::sync::{Arc, Mutex};
use std::time::Duration;

use sq_sim::{Clock, SystemClock, VirtualClock, poll_n_then_drop};

use crate::block_on;

const MINUTE: Duration = Duration::from_mins(1);

#[test]
fn sleepers_wake_in_the_order_of_their_deadlines() {
    block_on(async {
        let clock = VirtualClock::new();
        let woken = Arc::new(Mutex::new(Vec::new()));
        let sleepers: Vec<_> = [3, 1, 2, 1]
            .into_iter()
            .enumerate()
            .map(|(i, minutes)| {
                let (clock, woken) = (clock.clone(), woken.clone());
                tokio::spawn(async move {
                    clock.sleep(MINUTE * minutes).await;
                    woken.lock().unwrap().push((minutes, i));
                })
            })
            .collect();
        tokio::task::yield_now().await;
        clock.advance(MINUTE * 3);
        for sleeper in sleepers {
            sleeper.await.unwrap();
        }
        assert_eq!(*woken.lock().unwrap(), [(1, 1), (1, 3), (2, 2), (3, 0)]);
    });
}

#[test]
fn nobody_wakes_before_their_deadline() {
    block_on(async {
        let clock = VirtualClock::new();
        let mut sleep = clock.sleep(MINUTE);
        assert!(poll_n_then_drop(&mut sleep, 1).await.is_none());
        clock.advance(Duration::from_nanos(59_999_999_999));
        assert!(poll_n_then_drop(&mut sleep, 1).await.is_none());
        clock.advance(Duration::from_nanos(1));
        assert!(poll_n_then_drop(&mut sleep, 1).await.is_some());
    });
}

#[test]
fn steps_from_deadline_to_deadline() {
    block_on(async {
        let clock = VirtualClock::new();
        let mut late = clock.sleep(MINUTE * 2);
        let mut early = clock.sleep(MINUTE);
        let mut gone = clock.sleep(MINUTE / 2);
        assert!(poll_n_then_drop(&mut late, 1).await.is_none());
        assert!(poll_n_then_drop(&mut early, 1).await.is_none());
        assert!(poll_n_then_drop(&mut gone, 1).await.is_none());
        drop(gone);
        assert_eq!(clock.advance_to_next(), Some(MINUTE));
        early.await;
        assert!(poll_n_then_drop(&mut late, 1).await.is_none());
        assert_eq!(clock.advance_to_next(), Some(MINUTE));
        late.await;
        assert_eq!(clock.advance_to_next(), None);
        assert_eq!(clock.elapsed(), MINUTE * 2);
    });
}

#[test]
fn the_wall_clock_jumps_back_alone() {
    let clock = VirtualClock::new();
    let start = clock.now();
    clock.set_wall_ms(1_000_000);
    clock.advance(MINUTE);
    assert_eq!(clock.wall_ms(), 1_060_000);
    clock.set_wall_ms(400_000);
    assert_eq!((clock.wall_ms(), clock.now() - start), (400_000, MINUTE));
    clock.advance(Duration::from_millis(1));
    assert_eq!(clock.wall_ms(), 400_001);
}

#[test]
fn a_sleep_of_nothing_ends_at_once() {
    block_on(async {
        let sleep = poll_n_then_drop(VirtualClock::new().sleep(Duration::ZERO), 1).await;
        assert!(sleep.is_some());
    });
}

#[test]
fn paused_time_moves_the_system_clock() {
    let paused = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    paused.unwrap().block_on(async {
        let start = SystemClock.now();
        SystemClock.sleep(MINUTE).await;
        assert_eq!(SystemClock.now() - start, MINUTE);
        // 2020-01-01: the wall clock is the machine's.
        assert!(SystemClock.wall_ms() > 1_577_836_800_000);
    });
}
