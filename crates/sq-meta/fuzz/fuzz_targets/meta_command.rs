//! Commands from anything: what is read encodes to what was read, and applying it to any state leaves
//! a valid one. The input is a list of commands, each behind its length in two bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sq_meta::codec::command;
use sq_meta::{Broker, BrokerId, Command, MetaState};

fuzz_target!(|input: &[u8]| {
    let mut state = MetaState::default();
    for id in 0..3 {
        let broker = Broker {
            id: BrokerId(id),
            incarnation: 1,
            host: "h".to_owned(),
            port: 1,
            rack: None,
        };
        state.apply(&Command::RegisterBroker(broker)).unwrap();
    }
    let mut rest = input;
    while let Some((len, behind)) = rest.split_first_chunk() {
        let len = usize::from(u16::from_be_bytes(*len)).min(behind.len());
        let (bytes, behind) = behind.split_at(len);
        rest = behind;
        let Ok(read) = command::decode(bytes) else {
            continue;
        };
        assert_eq!(command::encode(&read), bytes);
        let before = state.clone();
        if state.apply(&read).is_err() {
            assert_eq!(state, before);
        }
        state.validate().unwrap();
    }
});
