//! The one frame that a guest answers without more ado: HELLO on its port `ctl`. The
//! format is that of `crates/wire/src/channel/frame.rs`.

use std::io;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

const MAGIC: &[u8] = b"PNDO";
const HELLO: u8 = 2;
const HELLO_ACK: u8 = 3;

/// A HELLO begins with so many bytes that its answer repeats.
const NONCE_BYTES: u32 = 16;

/// An answer is far shorter; more is not one.
const ANSWER_BYTES: usize = 1 << 20;

/// Says HELLO.
pub(super) struct Greeter {
    ctl: UnixStream,
    epoch: u64,
}

impl Greeter {
    pub(super) fn new(ctl: UnixStream) -> Self {
        Self { ctl, epoch: 0 }
    }

    /// Waits for the guest's agent. Nothing is asked of it, so it keeps its identity.
    pub(super) async fn greet(&mut self) -> io::Result<()> {
        self.epoch += 1;
        let mut hello = header(HELLO, self.epoch);
        hello.extend(NONCE_BYTES.to_le_bytes());
        hello.extend([0; NONCE_BYTES as usize]);
        self.ctl.write_all(&hello).await?;
        let answer = header(HELLO_ACK, self.epoch);
        let mut received = Vec::new();
        while !contains(&received, &answer) {
            if received.len() > ANSWER_BYTES || self.ctl.read_buf(&mut received).await? == 0 {
                return Err(io::Error::other("the guest does not say HELLO"));
            }
        }
        Ok(())
    }
}

/// Up to its length.
fn header(kind: u8, epoch: u64) -> Vec<u8> {
    let mut header = MAGIC.to_vec();
    header.extend([kind, 0, 0, 0]);
    header.extend(epoch.to_le_bytes());
    header
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_answer_to_another_greeting_does_not_count() {
        let (ours, mut guest) = UnixStream::pair().unwrap();
        let mut greeter = Greeter::new(ours);
        let answers = async {
            let mut hello = [0; 36];
            for epoch in 1..=2 {
                guest.read_exact(&mut hello).await.unwrap();
                assert_eq!(hello[..16], header(HELLO, epoch));
                assert_eq!(hello[16], 16);
                if epoch == 2 {
                    guest.write_all(&header(HELLO_ACK, 1)).await.unwrap();
                    guest.write_all(b"rest of it").await.unwrap();
                    tokio::task::yield_now().await;
                }
                guest.write_all(&header(HELLO_ACK, epoch)).await.unwrap();
            }
            drop(guest);
        };
        let greetings = async {
            greeter.greet().await.unwrap();
            greeter.greet().await.unwrap();
            assert!(greeter.greet().await.is_err());
        };
        tokio::join!(answers, greetings);
    }
}
