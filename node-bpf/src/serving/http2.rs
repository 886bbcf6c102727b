//! What HTTP/2 connections say of their requests: method, path and status, from the pieces of frames
//! with headers that the programs hand over, in order by connection and direction. Knows neither
//! sockets nor times.

use std::collections::HashMap;
use std::sync::Arc;

use super::hpack::{Decoder, Name, Value, ValueRef};
use super::http;
use super::wire::Piece;

/// Frames with headers (RFC 9113, 6.2, 6.6 and 6.10), and their flags.
const HEADERS: u8 = 1;
const PROMISE: u8 = 5;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 32;
/// `RM_MOST_BLOCK`.
const MOST_BLOCK: usize = 64 << 10;
/// Streams of which something is known, and fields of tables; of all connections together.
const MOST_CALLS: usize = 65_536;
const MOST_FIELDS: usize = 262_144;
/// Bytes of header blocks that have not ended, likewise.
const MOST_UNFINISHED: usize = 8 << 20;

/// What a stream's headers said. None where it is not known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) method: Option<&'static str>,
    pub(super) route: Option<Arc<str>>,
    pub(super) is_grpc: bool,
    pub(super) status: Option<u16>,
    pub(super) grpc_status: Option<u32>,
}

/// One direction of a connection.
#[derive(Debug, Default)]
struct Direction {
    /// Number of the piece that is next.
    next: u32,
    decoder: Decoder,
    /// Of the frame that is coming.
    frame: Vec<u8>,
    /// The header block's frames before that.
    block: Vec<u8>,
    /// The type of the block's first frame.
    kind: u8,
    /// Something is missing: all up to the next block is left out.
    skips: bool,
}

#[derive(Debug, Default)]
struct Connection {
    received: Direction,
    sent: Direction,
    /// The highest stream that has begun.
    last_stream: u32,
    calls: HashMap<u32, Fields>,
    /// To whom it is counted.
    user: u32,
}

impl Connection {
    fn fields(&self) -> usize {
        self.received.decoder.kept() + self.sent.decoder.kept()
    }

    fn unfinished(&self) -> usize {
        self.received.unfinished() + self.sent.unfinished()
    }
}

/// The connections that are looked into.
#[derive(Debug, Default)]
pub(super) struct Connections {
    of: HashMap<u64, Connection>,
    /// In all of them.
    calls: usize,
    fields: usize,
    unfinished: usize,
    /// Blocks of headers that were not read, as far as known.
    unread: u64,
}

impl Connections {
    /// Takes the next piece of a connection.
    pub(super) fn take(&mut self, piece: &Piece<'_>) {
        let connection = self.of.entry(piece.connection).or_default();
        connection.user = piece.user;
        let direction = if piece.is_sent { &mut connection.sent } else { &mut connection.received };
        let (kept, unfinished) = (direction.decoder.kept(), direction.unfinished());
        let (taken, missed) = direction.take(piece);
        self.unread += u64::from(missed);
        self.fields = self.fields + direction.decoder.kept() - kept;
        self.unfinished = self.unfinished + direction.unfinished() - unfinished;
        if let Some(seen) = taken {
            if piece.is_sent {
                if let Some(call) = connection.calls.get_mut(&piece.stream) {
                    call.status = seen.status.or(call.status);
                    call.grpc_status = seen.grpc_status.or(call.grpc_status);
                    call.is_grpc |= seen.is_grpc || seen.grpc_status.is_some();
                }
            } else if piece.stream > connection.last_stream {
                connection.last_stream = piece.stream;
                if piece.is_request {
                    // What a client says of statuses is no answer's.
                    let call = Fields { status: None, grpc_status: None, ..seen };
                    self.calls += usize::from(connection.calls.insert(piece.stream, call).is_none());
                }
            }
        }
        self.make_room();
    }

    /// Where too much is kept, lets go of what those with most have.
    fn make_room(&mut self) {
        if self.calls > MOST_CALLS {
            for key in with_most(&self.of, MOST_CALLS, |connection| connection.calls.len()) {
                let Some(connection) = self.of.get_mut(&key) else { continue };
                let calls = std::mem::take(&mut connection.calls).len();
                self.calls -= calls;
                self.unread += calls as u64;
            }
        }
        if self.fields > MOST_FIELDS {
            for key in with_most(&self.of, MOST_FIELDS, Connection::fields) {
                let Some(connection) = self.of.get_mut(&key) else { continue };
                self.fields -= connection.fields();
                connection.received.decoder.forget();
                connection.sent.decoder.forget();
                self.unread += 1;
            }
        }
        if self.unfinished > MOST_UNFINISHED {
            for key in with_most(&self.of, MOST_UNFINISHED, Connection::unfinished) {
                let Some(connection) = self.of.get_mut(&key) else { continue };
                self.unfinished -= connection.unfinished();
                self.fields -= connection.fields();
                for direction in [&mut connection.received, &mut connection.sent] {
                    if direction.unfinished() > 0 {
                        direction.lose();
                        self.unread += 1;
                    }
                }
                self.fields += connection.fields();
            }
        }
    }

    /// What is known of a stream that has ended.
    pub(super) fn ended(&mut self, connection: u64, stream: u32) -> Call {
        let call = self.of.get_mut(&connection).and_then(|connection| connection.calls.remove(&stream));
        self.calls -= usize::from(call.is_some());
        call.map(Fields::call).unwrap_or_default()
    }

    /// Lets go of a connection.
    pub(super) fn forget(&mut self, connection: u64) {
        if let Some(gone) = self.of.remove(&connection) {
            self.calls -= gone.calls.len();
            self.fields -= gone.fields();
            self.unfinished -= gone.unfinished();
        }
    }

    pub(super) fn known(&self) -> impl Iterator<Item = u64> {
        self.of.keys().copied()
    }

    /// Blocks of headers that were not read since the last time.
    pub(super) fn unread(&mut self) -> u64 {
        std::mem::take(&mut self.unread)
    }
}

/// Connections that together have what is beyond three quarters of `limit`, so that room is not made again
/// at once: of the user who has most, and of hers those that have most.
fn with_most(all: &HashMap<u64, Connection>, limit: usize, amount: impl Fn(&Connection) -> usize) -> Vec<u64> {
    let mut users: HashMap<u32, (usize, Vec<(usize, u64)>)> = HashMap::new();
    for (key, connection) in all {
        let (sum, connections) = users.entry(connection.user).or_default();
        *sum += amount(connection);
        connections.push((amount(connection), *key));
    }
    users.values_mut().for_each(|(_, connections)| connections.sort_unstable());
    let mut sum: usize = users.values().map(|(sum, _)| sum).sum();
    let mut chosen = vec![];
    while sum > limit / 4 * 3
        && let Some((_, (hers, connections))) = users.iter_mut().max_by_key(|(user, (sum, _))| (*sum, **user))
        && let Some((amount, key)) = connections.pop()
    {
        sum -= amount;
        *hers -= amount;
        chosen.push(key);
    }
    chosen
}

impl Direction {
    /// Bytes that a block which has not ended takes.
    fn unfinished(&self) -> usize {
        self.frame.capacity() + self.block.capacity()
    }

    /// All up to the next block is left out, and what came before it is not known.
    fn lose(&mut self) {
        self.decoder.forget();
        (self.frame, self.block) = (vec![], vec![]);
        self.skips = true;
    }

    /// What a block says, once it is complete; and whether something was missed.
    fn take(&mut self, piece: &Piece<'_>) -> (Option<Fields>, bool) {
        let missed = piece.number != self.next;
        self.next = piece.number.wrapping_add(1);
        if missed {
            self.lose();
        }
        if piece.at == 0 {
            self.frame.clear();
            if piece.kind != CONTINUATION {
                self.block.clear();
                self.kind = piece.kind;
                self.skips = false;
            }
        }
        if self.skips {
            return (None, missed);
        }
        self.frame.extend_from_slice(piece.data);
        if self.frame.len() < piece.frame_bytes as usize && self.frame.len() <= MOST_BLOCK {
            return (None, missed);
        }
        let added = fragment(&self.frame, piece.kind, piece.flags).map(|bytes| self.block.extend_from_slice(bytes));
        if added.is_none() || self.block.len() > MOST_BLOCK {
            self.lose();
            return (None, true);
        }
        if piece.flags & END_HEADERS == 0 {
            return (None, missed);
        }
        let (block, mut fields) = (std::mem::take(&mut self.block), Fields::default());
        self.frame = vec![];
        let read = self.decoder.decode(&block, |name, value| fields.note(name, value));
        // What a promise says is of a request that nobody sent.
        let call = read.filter(|()| self.kind != PROMISE).map(|()| fields);
        (call, missed || read.is_none())
    }
}

/// A frame's part of the header block, without padding and what else comes with it.
fn fragment(frame: &[u8], kind: u8, flags: u8) -> Option<&[u8]> {
    let (mut rest, mut padding) = (frame, 0);
    if kind != HEADERS && kind != PROMISE {
        return Some(rest);
    }
    if flags & PADDED != 0 {
        let (first, behind) = rest.split_first()?;
        (padding, rest) = (usize::from(*first), behind);
    }
    let beside = if kind == PROMISE { 4 } else { 5 * usize::from(flags & PRIORITY != 0) };
    let rest = rest.get(beside..)?;
    rest.get(..rest.len().checked_sub(padding)?)
}

/// The fields of a stream's blocks, as far as they count.
#[derive(Debug, Default)]
struct Fields {
    method: Option<&'static str>,
    path: Option<Value<Box<[u8]>>>,
    is_grpc: bool,
    status: Option<u16>,
    grpc_status: Option<u32>,
}

impl Fields {
    fn note(&mut self, name: Name, value: ValueRef<'_>) {
        let number = || std::str::from_utf8(value.bytes).ok()?.parse::<u32>().ok();
        match name {
            Name::Method => self.method = Some(http::method(value.bytes)),
            // There is one; copies of more would cost more than they do on the wire.
            Name::Path if self.path.is_none() => self.path = Some(value.kept()),
            Name::ContentType => self.is_grpc = value.bytes.starts_with(b"application/grpc"),
            Name::Status => {
                self.status = number().and_then(|n| u16::try_from(n).ok()).filter(|n| (100..1_000).contains(n));
            }
            Name::GrpcStatus => self.grpc_status = number(),
            Name::Path | Name::Other => (),
        }
    }

    /// Only at the end: whether it is gRPC may have been told by the answer alone.
    fn call(self) -> Call {
        let Fields { method, path, is_grpc, status, grpc_status } = self;
        let grpc_route = |path: &Value<Box<[u8]>>| if is_grpc { http::grpc_route(&path.bytes) } else { None };
        let route =
            path.map(|path| grpc_route(&path).unwrap_or_else(|| http::route(&path.bytes, path.is_whole)).into());
        Call { method, route, is_grpc, status, grpc_status }
    }
}

#[cfg(test)]
mod tests;
