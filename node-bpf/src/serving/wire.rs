//! The bytes that the programs on requests exchange with us. `bpf/requests.h` defines them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::Reader;

/// `struct rm_request`, and `struct rm_connection`, which begins with one.
pub(super) const REQUEST_BYTES: usize = 296;
pub(super) const CONNECTION_BYTES: usize = 312;
/// Where the state lies in a connection, and behind it the user that it is counted to.
const STATE_AT: usize = REQUEST_BYTES;
/// `RM_SERVER_PORTS`.
pub(super) const MOST_PORTS: usize = 8;

/// `RM_SERVER_ANY`, `RM_SERVER_UNIX`, `RM_SERVER_ALL_PORTS`.
const SERVER_ANY: u32 = 1;
const SERVER_UNIX: u32 = 2;
const SERVER_ALL_PORTS: u32 = 4;

/// `struct rm_piece`, up to its bytes.
const PIECE_HEAD_BYTES: usize = 36;

/// `struct rm_called`, and `struct rm_caller`.
const CALLED_BYTES: usize = 64;
const CALLER_BYTES: usize = 128;

/// `RM_REQUEST_OPAQUE` and its kin.
const OPAQUE: u32 = 1;
const POSITION_LOST: u32 = 2;
const RESET: u32 = 4;
const HAVE_TICKS: u32 = 8;

/// `struct rm_followed` of a server.
pub(super) fn followed(pid: u32) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&pid.to_ne_bytes());
    bytes
}

/// The server that an entry of `followed` is followed for.
pub(super) fn server_of(entry: &[u8]) -> Option<u32> {
    Reader::new(entry).u32()
}

/// What a connection speaks (`enum rm_protocol`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Protocol {
    Http1,
    Http2,
    Tls,
    Other,
    /// Not a connection: a thread that makes calls.
    Call,
}

/// Where a process listens, and what counts as its requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Listens {
    /// Ascending.
    pub(super) ports: Vec<u16>,
    pub(super) unix: bool,
    /// Also what is not HTTP.
    pub(super) any_protocol: bool,
    /// To whom its connections are counted.
    pub(super) user: u32,
}

impl Listens {
    /// `struct rm_server` of one that is followed since then, as the kernel's clock has it.
    pub(super) fn to_bytes(&self, since_ns: u64) -> [u8; 40] {
        let mut bytes = [0; 40];
        let all = self.ports.len() > MOST_PORTS;
        let flag = |is: bool, flag: u32| if is { flag } else { 0 };
        let flags = flag(self.any_protocol, SERVER_ANY) | flag(self.unix, SERVER_UNIX) | flag(all, SERVER_ALL_PORTS);
        let count = self.ports.len().min(MOST_PORTS) as u32;
        bytes[..4].copy_from_slice(&flags.to_ne_bytes());
        bytes[4..8].copy_from_slice(&count.to_ne_bytes());
        bytes[24..28].copy_from_slice(&self.user.to_ne_bytes());
        bytes[32..].copy_from_slice(&since_ns.to_ne_bytes());
        for (at, port) in self.ports.iter().take(MOST_PORTS).enumerate() {
            bytes[8 + 2 * at..10 + 2 * at].copy_from_slice(&port.to_ne_bytes());
        }
        bytes
    }
}

/// A request as the programs saw it; times are kernel times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RawRequest {
    pub(super) pid: u32,
    /// The server that `pid` is, or that it was forked from.
    pub(super) server: u32,
    pub(super) read_tid: u32,
    /// The threads that sent the first and the last bytes of the answer, and how often each had left
    /// a CPU then.
    pub(super) first: (u32, u32),
    pub(super) last: (u32, u32),
    pub(super) number: u32,
    pub(super) connection: u64,
    pub(super) begin_ns: u64,
    /// None: it was not answered.
    pub(super) first_ns: Option<u64>,
    pub(super) last_ns: u64,
    pub(super) gap_ns: u64,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) cgroup_id: u64,
    pub(super) sends: u32,
    /// Ticks that it had lain unread, and the kernel's tick when it was read.
    pub(super) ticks: Option<u32>,
    pub(super) jiffies: u32,
    /// A connection that is not looked into.
    pub(super) opaque: bool,
    /// Of these: an HTTP/2 connection that was looked into up to now.
    pub(super) position_lost: bool,
    /// Its answer did not come to its end: the server reset its stream with an error, or its connection
    /// closed before that.
    pub(super) broke_off: bool,
    pub(super) port: Option<u16>,
    /// The client's address; none of Unix sockets.
    pub(super) peer: Option<IpAddr>,
    pub(super) protocol: Protocol,
    /// Of calls the function's cookie.
    pub(super) function: u64,
    pub(super) answer: [u8; 16],
    head: [u8; 128],
    head_bytes: usize,
}

impl RawRequest {
    /// A call, as far as it is alike for those that have ended and those that have not.
    fn call(
        (pid, server, tid): (u32, u32, u32),
        (connection, number): (u64, u32),
        begin_ns: u64,
        function: u64,
    ) -> RawRequest {
        RawRequest {
            pid,
            server,
            read_tid: tid,
            first: (0, 0),
            last: (0, 0),
            number,
            connection,
            begin_ns,
            first_ns: None,
            last_ns: 0,
            gap_ns: 0,
            bytes_in: 0,
            bytes_out: 0,
            cgroup_id: 0,
            sends: 0,
            ticks: None,
            jiffies: 0,
            opaque: false,
            position_lost: false,
            broke_off: false,
            port: None,
            peer: None,
            protocol: Protocol::Call,
            function,
            answer: [0; 16],
            head: [0; 128],
            head_bytes: 0,
        }
    }

    /// Of HTTP/2 its stream, which a client has begun: an odd number.
    pub(super) fn stream(&self) -> u32 {
        self.number.saturating_mul(2).saturating_sub(1)
    }

    /// The first bytes of the request.
    pub(super) fn head(&self) -> &[u8] {
        self.head.get(..self.head_bytes).unwrap_or_default()
    }
}

/// Bytes of a frame with headers (`struct rm_piece`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece<'a> {
    pub(super) connection: u64,
    /// In its direction on the connection, from 0.
    pub(super) number: u32,
    pub(super) stream: u32,
    /// Of the frame's payload, and where in it these begin.
    pub(super) frame_bytes: u32,
    pub(super) at: u32,
    /// The frame's type and flags.
    pub(super) kind: u8,
    pub(super) flags: u8,
    /// By the server.
    pub(super) is_sent: bool,
    /// False where the kernel had no room for the request that the block begins: its end is not told.
    pub(super) is_request: bool,
    /// To whom the connection is counted.
    pub(super) user: u32,
    pub(super) data: &'a [u8],
}

/// A record of the ring that is bytes of headers. None where it is not.
pub(super) fn piece(bytes: &[u8]) -> Option<Piece<'_>> {
    if bytes.len() >= REQUEST_BYTES {
        return None;
    }
    let mut r = Reader::new(bytes);
    let (connection, number, stream, frame_bytes, at) = (r.u64()?, r.u32()?, r.u32()?, r.u32()?, r.u32()?);
    let ([kind, flags, sent, no_room], user, length) = (r.array()?, r.u32()?, r.u32()?);
    let data = bytes.get(PIECE_HEAD_BYTES..)?.get(..length as usize)?;
    let (is_sent, is_request) = (sent != 0, no_room == 0);
    Some(Piece { connection, number, stream, frame_bytes, at, kind, flags, is_sent, is_request, user, data })
}

/// The key of a stream (`struct rm_stream`): its connection, and its number there.
pub(super) fn stream_key(key: &[u8]) -> Option<(u64, u32)> {
    let mut r = Reader::new(key);
    Some((r.u64()?, r.u32()?))
}

/// A record of the ring that is a request, or the beginning of a connection's entry. None where it
/// is none.
pub(super) fn parse(bytes: &[u8]) -> Option<RawRequest> {
    if bytes.len() < REQUEST_BYTES {
        return None;
    }
    let mut r = Reader::new(bytes);
    let (pid, read_tid, sent_tid, number) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?);
    let (connection, _opened_ns, begin_ns) = (r.u64()?, r.u64()?, r.u64()?);
    let (first_ns, last_ns, gap_ns, bytes_in, bytes_out) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?, r.u64()?);
    let cgroup_id = r.u64()?;
    let (sends, ticks, jiffies, flags) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?);
    let (family, port, _peer_port, protocol) = (r.u16()?, r.u16()?, r.u16()?, r.u16()?);
    let (peer, answer, head): ([u8; 16], [u8; 16], [u8; 128]) = (r.array()?, r.array()?, r.array()?);
    let head_bytes = r.u32()? as usize;
    let (first, last) = ((sent_tid, r.u32()?), (r.u32()?, r.u32()?));
    let server = r.u32()?;
    let peer = match family {
        2 => Some(Ipv4Addr::new(peer[0], peer[1], peer[2], peer[3]).into()),
        10 => Some(Ipv6Addr::from(peer).to_canonical()),
        _ => None,
    };
    Some(RawRequest {
        pid,
        server,
        read_tid,
        first,
        last,
        number,
        connection,
        begin_ns,
        first_ns: (first_ns != 0).then_some(first_ns),
        last_ns,
        gap_ns,
        bytes_in,
        bytes_out,
        cgroup_id,
        sends,
        ticks: (flags & HAVE_TICKS != 0).then_some(ticks),
        jiffies,
        opaque: flags & OPAQUE != 0,
        position_lost: flags & POSITION_LOST != 0,
        broke_off: flags & RESET != 0,
        port: (port != 0).then_some(port),
        peer,
        protocol: match protocol {
            1 => Protocol::Http1,
            2 => Protocol::Http2,
            3 => Protocol::Tls,
            _ => Protocol::Other,
        },
        function: 0,
        answer,
        head,
        head_bytes,
    })
}

/// A record of the ring that is a call that is over, with how many calls of the functions began within
/// it. None where it is none.
pub(super) fn called(bytes: &[u8]) -> Option<(RawRequest, u32)> {
    if bytes.len() != CALLED_BYTES {
        return None;
    }
    let mut r = Reader::new(bytes);
    let (connection, begin_ns, end_ns, cgroup_id, function) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?, r.u64()?);
    let (pid, tid, number, switches, within, server) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?, r.u32()?, r.u32()?);
    let mut call = RawRequest::call((pid, server, tid), (connection, number), begin_ns, function);
    call.cgroup_id = cgroup_id;
    if end_ns != 0 {
        (call.first, call.last) = ((tid, switches), (tid, switches));
        (call.first_ns, call.last_ns) = (Some(end_ns), end_ns);
    }
    Some((call, within))
}

/// An entry of `callers`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) pid: u32,
    /// To whom it is counted.
    pub(super) user: u32,
    /// What the thread is in.
    pub(super) calls: Vec<RawRequest>,
}

/// The number of the attachment that is at a place (`struct rm_attachment`).
pub(super) fn attachment(entry: &[u8]) -> Option<u32> {
    Reader::new(entry.get(8..)?).u32().filter(|number| *number != 0)
}

/// None where the bytes are no entry.
pub(super) fn caller(entry: &[u8]) -> Option<Caller> {
    if entry.len() != CALLER_BYTES {
        return None;
    }
    let mut r = Reader::new(entry);
    let (connection, pid, tid, _number, user, server) = (r.u64()?, r.u32()?, r.u32()?, r.u32()?, r.u32()?, r.u32()?);
    r.u32()?;
    let mut calls = vec![];
    for _ in 0..2 {
        let (begin_ns, _sp, _ip, _word, function) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?, r.u64()?);
        let (number, _within) = (r.u32()?, r.u32()?);
        if begin_ns != 0 {
            calls.push(RawRequest::call((pid, server, tid), (connection, number), begin_ns, function));
        }
    }
    Some(Caller { pid, user, calls })
}

/// An entry of `connections`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Open {
    /// The request under way, or the last one.
    pub(super) request: RawRequest,
    pub(super) state: State,
}

/// What a connection does (`enum rm_connection_state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Reading,
    Answering,
    /// HTTP/2: its requests are streams.
    Streams,
    /// Its last request is over, or it is not looked into.
    Other,
}

/// None where the bytes are no entry.
pub(super) fn open(entry: &[u8]) -> Option<Open> {
    if entry.len() != CONNECTION_BYTES {
        return None;
    }
    let state = match Reader::new(entry.get(STATE_AT..)?).u32()? {
        1 => State::Reading,
        2 => State::Answering,
        4 => State::Streams,
        _ => State::Other,
    };
    Some(Open { request: parse(entry)?, state })
}

/// Of an entry of `servers`: to whom it is counted, the server that it was forked from, and since when it is
/// followed.
pub(super) fn server(entry: &[u8]) -> Option<(u32, Option<u32>, u64)> {
    let mut r = Reader::new(entry.get(24..)?);
    let (user, of, since_ns) = (r.u32()?, r.u32()?, r.u64()?);
    Some((user, Some(of).filter(|of| *of != 0), since_ns))
}

/// To whom a connection is counted.
pub(super) fn user(entry: &[u8]) -> Option<u32> {
    Reader::new(entry.get(STATE_AT + 4..)?).u32()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A record of the ring with these first bytes, flags and family.
    pub(in crate::serving) fn record(head: &[u8], flags: u32, family: u16) -> Vec<u8> {
        let mut bytes: Vec<u8> = [7_u32, 8, 9, 2].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let words = [0xffff_0000_u64, 100, 1_000, 1_500, 3_000, 700, 90, 4_000, 5];
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend([3_u32, 4, 77, flags].iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend([family, 8000, 40_000, 1].iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend([127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(*b"HTTP/1.1 200 OK\r");
        let mut all = [0; 128];
        all[..head.len()].copy_from_slice(head);
        bytes.extend(all);
        bytes.extend([head.len() as u32, 21, 10, 33, 6, 0].iter().flat_map(|word| word.to_ne_bytes()));
        bytes
    }

    #[test]
    fn a_record_is_read_field_by_field() {
        let raw = parse(&record(b"GET / HTTP/1.1\r\n", HAVE_TICKS, 2)).unwrap();
        assert_eq!((raw.pid, raw.server, raw.read_tid, raw.number), (7, 6, 8, 2));
        assert_eq!((raw.first, raw.last), ((9, 21), (10, 33)));
        assert_eq!((raw.begin_ns, raw.first_ns, raw.last_ns, raw.gap_ns), (1_000, Some(1_500), 3_000, 700));
        assert_eq!((raw.bytes_in, raw.bytes_out, raw.sends), (90, 4_000, 3));
        assert_eq!((raw.ticks, raw.jiffies), (Some(4), 77));
        assert_eq!((raw.port, raw.peer, raw.protocol), (Some(8000), Some(Ipv4Addr::LOCALHOST.into()), Protocol::Http1));
        assert_eq!((raw.head(), raw.opaque), (&b"GET / HTTP/1.1\r\n"[..], false));
        let other = parse(&record(b"", 0, 1)).unwrap();
        assert_eq!((other.ticks, other.peer), (None, None));
        assert_eq!((parse(&record(b"", 0, 2)[..200]), piece(&record(b"", 0, 2))), (None, None));
    }

    #[test]
    fn a_call_is_read_field_by_field() {
        let record = |end_ns: u64| {
            let longs = [5_u64, 1_000, end_ns, 21, (3 << 32) | 7].map(u64::to_ne_bytes).concat();
            [longs, [7_u32, 8, 2, 33, 4, 6].map(u32::to_ne_bytes).concat()].concat()
        };
        let (raw, within) = called(&record(3_000)).unwrap();
        assert_eq!((raw.pid, raw.server, raw.read_tid, raw.connection, raw.number, within), (7, 6, 8, 5, 2, 4));
        assert_eq!((raw.begin_ns, raw.first_ns, raw.last_ns, raw.last), (1_000, Some(3_000), 3_000, (8, 33)));
        assert_eq!((raw.protocol, raw.function, raw.cgroup_id), (Protocol::Call, (3 << 32) | 7, 21));
        assert_eq!(called(&record(0)).unwrap().0.first_ns, None, "it was left");
        assert_eq!((called(&record(1)[..60]), parse(&record(1))), (None, None));
        let begun = |begin_ns: u64| [begin_ns, 1, 2, 3, 9, 6].map(u64::to_ne_bytes).concat();
        let head = [&5_u64.to_ne_bytes()[..], &[7_u32, 8, 2, 1_000, 6, 0].map(u32::to_ne_bytes).concat()].concat();
        let of = caller(&[head, begun(0), begun(77)].concat()).unwrap();
        assert_eq!((of.pid, of.user, of.calls.len()), (7, 1_000, 1));
        assert_eq!(of.calls[0].server, 6);
        assert_eq!((of.calls[0].begin_ns, of.calls[0].function, of.calls[0].number), (77, 9, 6));
        assert_eq!(caller(&[0; 8]), None);
    }

    #[test]
    fn a_piece_of_headers_is_read_field_by_field() {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        let bytes =
            [&7_u64.to_ne_bytes()[..], &words(&[3, 5, 20, 17]), &[9, 4, 1, 0], &words(&[1_000, 3]), b"abc"].concat();
        let expected = Piece {
            connection: 7,
            number: 3,
            stream: 5,
            frame_bytes: 20,
            at: 17,
            kind: 9,
            flags: 4,
            is_sent: true,
            is_request: true,
            user: 1_000,
            data: b"abc",
        };
        assert_eq!((piece(&bytes), parse(&bytes)), (Some(expected), None));
        assert_eq!((piece(&bytes[..38]), piece(&bytes[..20])), (None, None));
        assert_eq!(stream_key(&[&7_u64.to_ne_bytes()[..], &words(&[5, 0])].concat()), Some((7, 5)));
    }

    #[test]
    fn an_entry_is_a_request_with_a_state() {
        let entry = |state: u32| [record(b"x", 0, 2), [state, 0, 0, 0].map(u32::to_ne_bytes).concat()].concat();
        let states: Vec<State> = (0..5).filter_map(|state| Some(open(&entry(state))?.state)).collect();
        assert_eq!(states, [State::Other, State::Reading, State::Answering, State::Other, State::Streams]);
        assert_eq!(open(&record(b"x", 0, 2)), None);
    }

    #[test]
    fn what_the_programs_are_told_of_a_server() {
        let listens = Listens { ports: vec![80, 8000], unix: true, any_protocol: true, user: 0x0102_0304 };
        let bytes = listens.to_bytes(9);
        assert_eq!((bytes[0], bytes[4], &bytes[8..12]), (3, 2, &[80_u16, 8000].map(u16::to_ne_bytes).concat()[..]));
        let many = Listens { ports: (1..20).collect(), ..Listens::default() };
        assert_eq!((many.to_bytes(9)[0], many.to_bytes(9)[4]), (4, 8));
        assert_eq!((&bytes[24..28], &bytes[32..]), (&0x0102_0304_u32.to_ne_bytes()[..], &9_u64.to_ne_bytes()[..]));
    }
}
