//! What HTTP/2 connections say of their requests: method, path and status, from the pieces of frames
//! with headers that the programs hand over, in order by connection and direction. Knows neither
//! sockets nor times.

use std::collections::HashMap;
use std::sync::Arc;

use super::hpack::{Decoder, Name, Value};
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
    /// Something is missing: all up to the next block is left out.
    skips: bool,
}

#[derive(Debug, Default)]
struct Connection {
    received: Direction,
    sent: Direction,
    /// The highest stream that has begun.
    last_stream: u32,
    calls: HashMap<u32, Call>,
}

/// The connections that are looked into.
#[derive(Debug, Default)]
pub(super) struct Connections {
    of: HashMap<u64, Connection>,
    /// In all of them.
    calls: usize,
    fields: usize,
    /// Blocks of headers that were not read, as far as known.
    unread: u64,
}

impl Connections {
    /// Takes the next piece of a connection.
    pub(super) fn take(&mut self, piece: &Piece<'_>) {
        if self.calls >= MOST_CALLS {
            // Most are of streams whose end was lost.
            self.of.values_mut().for_each(|connection| connection.calls.clear());
            self.calls = 0;
        }
        let connection = self.of.entry(piece.connection).or_default();
        let direction = if piece.is_sent { &mut connection.sent } else { &mut connection.received };
        let kept = direction.decoder.kept();
        let (taken, missed) = direction.take(piece);
        self.unread += u64::from(missed);
        self.fields = self.fields + direction.decoder.kept() - kept;
        if self.fields > MOST_FIELDS {
            self.fields -= direction.decoder.kept();
            direction.decoder.forget();
        }
        let Some(seen) = taken else { return };
        if piece.is_sent {
            if let Some(call) = connection.calls.get_mut(&piece.stream) {
                call.status = seen.status.or(call.status);
                call.grpc_status = seen.grpc_status.or(call.grpc_status);
            }
        } else if piece.stream > connection.last_stream {
            connection.last_stream = piece.stream;
            self.calls += usize::from(connection.calls.insert(piece.stream, seen).is_none());
        }
    }

    /// What is known of a stream that has ended.
    pub(super) fn ended(&mut self, connection: u64, stream: u32) -> Call {
        let call = self.of.get_mut(&connection).and_then(|connection| connection.calls.remove(&stream));
        self.calls -= usize::from(call.is_some());
        call.unwrap_or_default()
    }

    /// Lets go of a connection.
    pub(super) fn forget(&mut self, connection: u64) {
        if let Some(gone) = self.of.remove(&connection) {
            self.calls -= gone.calls.len();
            self.fields -= gone.received.decoder.kept() + gone.sent.decoder.kept();
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

impl Direction {
    /// What a block says, once it is complete; and whether something was missed.
    fn take(&mut self, piece: &Piece<'_>) -> (Option<Call>, bool) {
        let missed = piece.number != self.next;
        self.next = piece.number.wrapping_add(1);
        if missed {
            self.decoder.forget();
            self.skips = true;
        }
        if piece.at == 0 {
            self.frame.clear();
            if piece.kind != CONTINUATION {
                self.block.clear();
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
            self.decoder.forget();
            self.skips = true;
            return (None, true);
        }
        if piece.flags & END_HEADERS == 0 {
            return (None, missed);
        }
        let mut fields = Fields::default();
        let read = self.decoder.decode(&self.block, |name, value| fields.note(name, value));
        // What a promise says is of a request that nobody sent.
        let call = read.filter(|()| piece.kind != PROMISE).map(|()| fields.call());
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

/// A block's fields, as far as they count.
#[derive(Debug, Default)]
struct Fields {
    path: Option<Value>,
    call: Call,
}

impl Fields {
    fn note(&mut self, name: Name, value: &Value) {
        let number = || std::str::from_utf8(&value.bytes).ok()?.parse::<u32>().ok();
        let call = &mut self.call;
        match name {
            Name::Method => call.method = Some(http::method(&value.bytes)),
            Name::Path => self.path = Some(value.clone()),
            Name::ContentType => call.is_grpc = value.bytes.starts_with(b"application/grpc"),
            Name::Status => {
                call.status = number().and_then(|n| u16::try_from(n).ok()).filter(|n| (100..1_000).contains(n));
            }
            Name::GrpcStatus => call.grpc_status = number(),
            Name::Other => (),
        }
    }

    fn call(self) -> Call {
        let Fields { path, mut call } = self;
        let grpc_route = |path: &Value| if call.is_grpc { http::grpc_route(&path.bytes) } else { None };
        call.route =
            path.map(|path| grpc_route(&path).unwrap_or_else(|| http::route(&path.bytes, path.is_whole)).into());
        call
    }
}

#[cfg(test)]
mod tests;
