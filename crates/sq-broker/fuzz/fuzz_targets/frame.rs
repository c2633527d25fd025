//! Frames from a stream of anything: each as long as it says, none beyond the bound, and what is
//! not a frame is an error. The first byte says how many bytes a read gives.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use sq_broker::protocol::{FrameError, read_frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const MAX: usize = 64 * 1024;

fuzz_target!(|input: &[u8]| {
    let Some((&step, bytes)) = input.split_first() else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        // A pipe of that size gives no more at a time.
        let (near, mut far) = tokio::io::duplex(usize::from(step) + 1);
        let feed = async move {
            let _ = far.write_all(bytes).await;
        };
        let read = async {
            let (mut near, mut buf, mut taken) = (near, BytesMut::new(), 0);
            let rest = loop {
                match read_frame(&mut near, &mut buf, MAX).await {
                    Ok(Some(frame)) => {
                        let announced = &bytes[taken..taken + 4];
                        assert_eq!(announced, (frame.len() as u32).to_be_bytes());
                        assert_eq!(frame, bytes[taken + 4..taken + 4 + frame.len()]);
                        taken += 4 + frame.len();
                    }
                    Ok(None) => break assert_eq!(taken, bytes.len()),
                    Err(FrameError::Truncated { have, want }) => {
                        assert!(have < want && taken + have == bytes.len());
                        break;
                    }
                    Err(FrameError::Io(error)) => panic!("{error}"),
                    Err(_) => break,
                }
            };
            // What is left has to be drained, or the other side would wait for ever.
            let _ = near.read_to_end(&mut Vec::new()).await;
            rest
        };
        tokio::join!(feed, read);
    });
});
