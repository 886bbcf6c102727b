//! Frames: how typed messages become bytes on a stream, and back. The only module that knows
//! bincode.
//!
//! A frame is a length (u32, little endian, of what follows), a version byte, and a bincode body.
//! It is the same on QUIC streams and on the local socket; which messages travel is up to the
//! caller (`wire` has those between nodes). The other end is not trusted: lengths are limited,
//! memory grows as bytes arrive, nothing panics, and a body that does not fit its type exactly is
//! an error.

use std::io;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use futures::FutureExt as _;
use query_planner::memory::{self, Account, Refused, SharedReservation};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The version this build writes and reads. A change to the shape of an existing message raises it;
/// a new message kind does not (an older node answers that it does not know it).
pub const VERSION: u8 = 1;

/// Largest frame, bytes, version byte and body together.
pub const MAX_FRAME_BYTES: usize = 8 * 1024 * 1024;

/// Largest frame of what people ask, bytes: a question's SQL has 100,000.
pub const MAX_ASKED_BYTES: usize = 512 << 10;

/// Frames from this size on count as the questions' memory while they are read, and what may be
/// made of one.
const LARGE_FRAME_BYTES: usize = 64 << 10;
const DECODED_BYTES: u64 = 64 << 20;

/// Length prefix and version byte.
const HEADER_BYTES: usize = 5;

/// Room that a frame is given to begin with; most fit.
const FIRST_WRITE_BYTES: usize = 256;

/// The receive buffer starts with room for a small answer (so much the allocator keeps at hand for
/// each thread) and grows as a frame arrives, in steps of at most the second size, whatever length
/// the frame claims.
const FIRST_READ_BYTES: usize = 1024;
const READ_STEP_BYTES: usize = 256 * 1024;

/// A frame could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The stream failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The frame is longer than allowed.
    #[error("a frame of {bytes} bytes exceeds the limit of {limit}")]
    TooLarge {
        /// Its length, as claimed or as encoded.
        bytes: usize,
        /// The most that it may have.
        limit: usize,
    },
    /// There is no memory for it.
    #[error("no room for a frame: {0}")]
    NoMemory(#[from] Refused),
    /// The frame is of a version this build does not read.
    #[error("the frame has version {got}, this build reads version {VERSION}: bring both nodes to one release")]
    Version {
        /// The version found.
        got: u8,
    },
    /// The body is not of the expected type.
    #[error("malformed frame: {0}")]
    Malformed(String),
    /// The stream ended inside a frame.
    #[error("the stream ended inside a frame")]
    Truncated,
}

fn codec() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<MAX_FRAME_BYTES>()
}

/// The bytes of one frame.
///
/// # Errors
/// [`FrameError::TooLarge`]; [`FrameError::Malformed`] when the value cannot be encoded.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, FrameError> {
    let mut bytes = Vec::with_capacity(FIRST_WRITE_BYTES);
    encode_behind(&mut bytes, value)?;
    Ok(bytes)
}

/// As [`encode`], behind the frames that are in `bytes` already, so that they go out together. An
/// error leaves those alone.
///
/// # Errors
/// As [`encode`].
pub fn encode_behind<T: Serialize>(bytes: &mut Vec<u8>, value: &T) -> Result<(), FrameError> {
    let at = bytes.len();
    bytes.extend([0; HEADER_BYTES]);
    bytes[at + 4] = VERSION;
    let encoded = bincode::serde::encode_into_std_write(value, bytes, codec());
    let length = bytes.len() - at - 4;
    let failed = match encoded {
        Err(error) => Some(FrameError::Malformed(error.to_string())),
        Ok(_) if length > MAX_FRAME_BYTES => Some(FrameError::TooLarge { bytes: length, limit: MAX_FRAME_BYTES }),
        Ok(_) => None,
    };
    if let Some(error) = failed {
        bytes.truncate(at);
        return Err(error);
    }
    // Within the limit, so within 32 bits.
    bytes[at..at + 4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(())
}

/// Writes one frame.
///
/// # Errors
/// As [`encode`], and [`FrameError::Io`].
pub async fn write<W: AsyncWrite + Unpin, T: Serialize>(out: &mut W, value: &T) -> Result<(), FrameError> {
    out.write_all(&encode(value)?).await?;
    Ok(())
}

/// Reads frames from a stream.
#[derive(Debug)]
pub struct FrameReader<R> {
    stream: R,
    buffer: BytesMut,
    /// The most that a frame may have, bytes.
    most: usize,
    /// What counts the buffer, and how much of it is counted.
    counted: Option<(SharedReservation, usize)>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// A reader of `stream`'s frames.
    pub fn new(stream: R) -> Self {
        Self { stream, buffer: BytesMut::new(), most: MAX_FRAME_BYTES, counted: None }
    }

    /// With frames of at most so many bytes.
    #[must_use]
    pub fn at_most(self, bytes: usize) -> Self {
        Self { most: bytes.min(MAX_FRAME_BYTES), ..self }
    }

    /// With what is kept of a frame while it arrives counted to `account`, and so to the pool of
    /// all questions, but for the first KiB.
    #[must_use]
    pub fn counted_to(self, account: &Arc<Account>) -> Self {
        Self { counted: Some((SharedReservation::of(account), 0)), ..self }
    }

    /// Counts the buffer as so many bytes.
    fn count(&mut self, bytes: usize) -> Result<(), Refused> {
        let Some((reservation, counted)) = &mut self.counted else { return Ok(()) };
        let bytes = if bytes <= FIRST_READ_BYTES { 0 } else { bytes };
        match bytes.checked_sub(*counted) {
            Some(0) => {}
            Some(more) => reservation.try_grow(more as u64)?,
            None => reservation.shrink((*counted - bytes) as u64),
        }
        *counted = bytes;
        Ok(())
    }

    /// The next frame's value; `None` when the stream ended between frames. Cancel-safe: when the
    /// future is dropped, what has arrived is kept for the next call.
    ///
    /// # Errors
    /// Any [`FrameError`]. After one the stream has lost its framing and should be given up, except
    /// after [`FrameError::Version`] and [`FrameError::Malformed`], which consume exactly their
    /// frame.
    pub async fn read<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        loop {
            if let Some(frame) = self.take_frame()? {
                let value = decode(&frame);
                drop(frame);
                self.count(self.buffer.len())?;
                return value.map(Some);
            }
            let step = self.buffer.len().clamp(FIRST_READ_BYTES, READ_STEP_BYTES);
            self.count(if self.buffer.is_empty() { 0 } else { self.buffer.len() + step })?;
            self.buffer.reserve(step);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return if self.buffer.is_empty() { Ok(None) } else { Err(FrameError::Truncated) };
            }
        }
    }

    /// Whether the stream is known to have ended behind what was read; waits for nothing. On a QUIC
    /// stream this spares the peer a notice that no more is wanted.
    pub fn at_end(&mut self) -> bool {
        let mut byte = [0];
        if !self.buffer.is_empty() {
            return false;
        }
        match self.stream.read(&mut byte).now_or_never() {
            Some(Ok(0)) => true,
            Some(Ok(_)) => {
                self.buffer.extend_from_slice(&byte);
                false
            }
            Some(Err(_)) | None => false,
        }
    }

    /// Splits a complete frame (version byte and body) off the buffer, if there is one.
    fn take_frame(&mut self) -> Result<Option<BytesMut>, FrameError> {
        let Some(prefix) = self.buffer.first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*prefix) as usize;
        if length > self.most {
            return Err(FrameError::TooLarge { bytes: length, limit: self.most });
        }
        if self.buffer.len() < 4 + length {
            return Ok(None);
        }
        self.buffer.advance(4);
        Ok(Some(self.buffer.split_to(length)))
    }
}

/// A complete frame, its length included, as [`encode`] makes it.
///
/// # Errors
/// Its version is another, or its body not of this type.
pub fn decode_frame<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, FrameError> {
    decode(bytes.get(4..).unwrap_or_default())
}

fn decode<T: DeserializeOwned>(frame: &[u8]) -> Result<T, FrameError> {
    // Rows take far more memory than bytes: what is read is of the questions' memory, until it
    // counts as one question's.
    let _cap = (frame.len() >= LARGE_FRAME_BYTES).then(|| memory::cap(DECODED_BYTES));
    let Some((&version, body)) = frame.split_first() else {
        return Err(FrameError::Malformed("it is empty".into()));
    };
    if version != VERSION {
        return Err(FrameError::Version { got: version });
    }
    let (value, used) =
        bincode::serde::decode_from_slice(body, codec()).map_err(|e| FrameError::Malformed(e.to_string()))?;
    if used != body.len() {
        return Err(FrameError::Malformed(format!("{} bytes are left over", body.len() - used)));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use proptest::prelude::*;
    use query_planner::{Batch, Value};
    use tokio::io::ReadBuf;

    use super::*;
    use crate::wire::{Request, Response};

    /// Hands out `bytes` in pieces of `step`, being not ready between two pieces.
    struct Dribble {
        bytes: Vec<u8>,
        at: usize,
        step: usize,
        ready: bool,
    }

    impl AsyncRead for Dribble {
        fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            self.ready = !self.ready;
            if self.ready {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let count = self.step.min(out.remaining()).min(self.bytes.len() - self.at);
            out.put_slice(&self.bytes[self.at..self.at + count]);
            self.at += count;
            Poll::Ready(Ok(()))
        }
    }

    fn reader(bytes: Vec<u8>, step: usize) -> FrameReader<Dribble> {
        FrameReader::new(Dribble { bytes, at: 0, step, ready: false })
    }

    fn block<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    fn value() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::Integer),
            any::<f64>().prop_filter("NaN is no SQLite value", |f| !f.is_nan()).prop_map(Value::Real),
            proptest::collection::vec(any::<u8>(), 0..20).prop_map(Value::Text),
            proptest::collection::vec(any::<u8>(), 0..20).prop_map(Value::Blob),
        ]
    }

    proptest! {
        #[test]
        fn batches_come_back_complete_however_they_are_cut(
            columns in proptest::collection::vec(proptest::collection::vec(value(), 3), 0..4),
            step in 1usize..50,
        ) {
            let batch = Response::Batch { fragment: 3, batch: Batch { rows: 3, columns } };
            let mut bytes = encode(&batch).unwrap();
            bytes.extend(encode(&Response::Catalog(vec![1, 2])).unwrap());
            let mut reader = reader(bytes, step);
            prop_assert_eq!(format!("{:?}", block(reader.read::<Response>()).unwrap()), format!("{:?}", Some(batch)));
            prop_assert!(matches!(block(reader.read::<Response>()), Ok(Some(Response::Catalog(_)))));
            prop_assert!(matches!(block(reader.read::<Response>()), Ok(None)));
        }

        #[test]
        fn no_bytes_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), framed in any::<bool>(), step in 1usize..50) {
            if framed && bytes.len() >= HEADER_BYTES {
                let length = (bytes.len() - 4) as u32;
                bytes[..4].copy_from_slice(&length.to_le_bytes());
                bytes[4] = VERSION;
            }
            let mut requests = reader(bytes.clone(), step);
            while let Ok(Some(_)) = block(requests.read::<Request>()) {}
            let mut responses = reader(bytes, step);
            while let Ok(Some(_)) = block(responses.read::<Response>()) {}
        }
    }

    #[test]
    fn a_dropped_read_loses_nothing() {
        block(async {
            let bytes = encode(&Response::Catalog(vec![7; 100])).unwrap();
            let mut reader = reader(bytes, 10);
            let mut tries = 0;
            let got = loop {
                tries += 1;
                // Polled once, then dropped.
                if let Poll::Ready(got) = futures::poll!(std::pin::pin!(reader.read::<Response>())) {
                    break got;
                }
            };
            assert!(tries > 3);
            assert!(matches!(got, Ok(Some(Response::Catalog(body))) if body == vec![7; 100]));
        });
    }

    #[test]
    fn frames_behind_each_other_are_read_one_by_one_and_the_end_is_seen() {
        block(async {
            let mut bytes = encode(&Response::Catalog(vec![1; 9])).unwrap();
            let first = bytes.clone();
            let huge = Response::Catalog(vec![0; MAX_FRAME_BYTES + 1]);
            assert!(matches!(encode_behind(&mut bytes, &huge), Err(FrameError::TooLarge { .. })));
            assert_eq!(bytes, first, "what failed leaves nothing behind");
            encode_behind(&mut bytes, &Response::Catalog(vec![2; 9])).unwrap();
            let mut reader = FrameReader::new(&bytes[..]);
            for byte in [1, 2] {
                assert!(!reader.at_end());
                let read = reader.read::<Response>().await;
                assert!(matches!(read, Ok(Some(Response::Catalog(body))) if body == vec![byte; 9]));
            }
            assert!(reader.at_end());
        });
    }

    #[test]
    fn a_false_length_costs_no_memory() {
        block(async {
            let mut too_long = (MAX_FRAME_BYTES as u32 + 1).to_le_bytes().to_vec();
            too_long.push(VERSION);
            let error = reader(too_long, 64).read::<Request>().await.unwrap_err();
            assert!(matches!(error, FrameError::TooLarge { .. }), "{error}");

            let mut claimed = (MAX_FRAME_BYTES as u32).to_le_bytes().to_vec();
            claimed.push(VERSION);
            let mut reader = reader(claimed, 64);
            assert!(matches!(reader.read::<Request>().await, Err(FrameError::Truncated)));
            assert!(reader.buffer.capacity() < 4 * READ_STEP_BYTES);
        });
    }

    #[test]
    fn frames_count_while_they_arrive_and_no_longer() {
        block(async {
            let frame = encode(&Response::Catalog(vec![1; 600_000])).unwrap();
            let (account, narrow) = (Account::new(2 << 20), Account::new(300_000));
            let mut one = FrameReader::new(&frame[..500_000]).counted_to(&account);
            assert!(matches!(one.read::<Response>().await, Err(FrameError::Truncated)), "it waits for the rest");
            let held = |account: &Arc<Account>| {
                let rest = SharedReservation::of(account);
                (0..).take_while(|_| rest.try_grow(1 << 10).is_ok()).count()
            };
            assert!(held(&account) < (2 << 10) - 480, "what has come counts");
            // Another of the same peer finds no room, and none is left when both are gone.
            let both = [frame.clone(), frame.clone()].concat();
            let refused = FrameReader::new(&both[..]).counted_to(&narrow).read::<Response>().await;
            assert!(matches!(refused, Err(FrameError::NoMemory(_))), "{refused:?}");
            drop(one);
            assert_eq!((held(&account), held(&narrow)), (2 << 10, 300_000 >> 10));
            let mut whole = FrameReader::new(&both[..]).counted_to(&account);
            for _ in 0..2 {
                assert!(matches!(whole.read::<Response>().await, Ok(Some(Response::Catalog(_)))));
            }
            assert!(matches!(whole.read::<Response>().await, Ok(None)));
            let short = FrameReader::new(&frame[..]).at_most(1_000).read::<Response>().await;
            assert!(matches!(short, Err(FrameError::TooLarge { limit: 1_000, .. })), "{short:?}");
        });
    }

    #[test]
    fn a_newer_nodes_message_is_recognised_and_the_next_frame_still_read() {
        block(async {
            let mut bytes = encode(&Request::Ping).unwrap();
            bytes[4] = VERSION + 1;
            // A request kind far beyond those known.
            bytes.extend([2, 0, 0, 0, VERSION, 200]);
            // A known kind with something behind it.
            bytes.extend([3, 0, 0, 0, VERSION, 0, 9]);
            bytes.extend(encode(&Request::Ping).unwrap());
            let mut reader = reader(bytes, 64);
            assert!(matches!(reader.read::<Request>().await, Err(FrameError::Version { got }) if got == VERSION + 1));
            assert!(matches!(reader.read::<Request>().await, Err(FrameError::Malformed(_))));
            assert!(matches!(reader.read::<Request>().await, Err(FrameError::Malformed(_))));
            assert!(matches!(reader.read::<Request>().await, Ok(Some(Request::Ping))));
        });
    }

    #[test]
    fn too_large_a_value_is_refused_before_it_is_sent() {
        let huge = Response::Catalog(vec![0; MAX_FRAME_BYTES + 1]);
        assert!(matches!(encode(&huge), Err(FrameError::TooLarge { .. })));
    }
}
