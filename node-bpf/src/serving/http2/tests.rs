use super::*;

const END_STREAM: u8 = 1;

/// Hands a frame over in pieces of `most` bytes.
struct Sender {
    connection: u64,
    numbers: [u32; 2],
    most: usize,
    has_room: bool,
    user: u32,
}

fn sender_on(connection: u64) -> Sender {
    Sender { connection, numbers: [0, 0], most: 192, has_room: true, user: 1_000 }
}

/// What is kept of connections, and who sends on connection 7 in pieces of `most` bytes.
fn begin(most: usize) -> (Connections, Sender) {
    (Connections::default(), Sender { most, ..sender_on(7) })
}

impl Sender {
    fn send(&mut self, to: &mut Connections, (stream, is_sent): (u32, bool), (kind, flags): (u8, u8), payload: &[u8]) {
        let pieces: Vec<&[u8]> = if payload.is_empty() { vec![payload] } else { payload.chunks(self.most).collect() };
        let mut at = 0;
        for data in pieces {
            let number = self.numbers[usize::from(is_sent)];
            self.numbers[usize::from(is_sent)] += 1;
            let frame_bytes = payload.len() as u32;
            let (connection, is_request, user) = (self.connection, self.has_room, self.user);
            let whose =
                Piece { connection, number, stream, frame_bytes, at, kind, flags, is_sent, is_request, user, data };
            to.take(&whose);
            at += data.len() as u32;
        }
    }
}

fn literal(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[text.len() as u8][..], text.as_bytes()].concat();
    [vec![0x40], text(name), text(value)].concat()
}

fn request(path: &str) -> Vec<u8> {
    [literal(":method", "POST"), literal(":path", path), literal("content-type", "application/grpc+proto")].concat()
}

fn answer(status: &str, grpc: &str) -> Vec<u8> {
    [literal(":status", status), literal("grpc-status", grpc)].concat()
}

#[test]
fn a_call_has_its_path_and_both_statuses_however_its_frames_are_cut() {
    for most in [1, 5, 192] {
        let (mut all, mut sender) = begin(most);
        let block = request("/helloworld.Greeter/SayHello");
        // Padded, with a priority, and continued.
        let (first, rest) = block.split_at(20);
        let padded = [&[3][..], &[0, 0, 0, 0, 16], first, &[0, 0, 0]].concat();
        sender.send(&mut all, (1, false), (HEADERS, PADDED | PRIORITY), &padded);
        sender.send(&mut all, (1, false), (CONTINUATION, 0), &[]);
        sender.send(&mut all, (1, false), (CONTINUATION, END_HEADERS), rest);
        sender.send(&mut all, (1, true), (HEADERS, END_HEADERS), &literal(":status", "200"));
        // Trailers.
        sender.send(&mut all, (1, true), (HEADERS, END_HEADERS | END_STREAM), &literal("grpc-status", "5"));
        let call = all.ended(7, 1);
        assert_eq!((call.method, call.route.as_deref()), (Some("POST"), Some("/helloworld.Greeter/SayHello")));
        assert_eq!((call.is_grpc, call.status, call.grpc_status), (true, Some(200), Some(5)));
        assert_eq!((all.unread(), all.calls), (0, 0));
        all.forget(7);
        assert_eq!((all.fields, all.unfinished, all.of.len()), (0, 0, 0));
    }
}

#[test]
fn what_refers_to_something_that_was_missed_is_not_said() {
    let (mut all, mut sender) = begin(192);
    sender.send(&mut all, (1, false), (HEADERS, END_HEADERS), &request("/a.B/C"));
    // The three fields of before, and a path.
    let again = [&[0x80 | 62, 0x80 | 63, 0x80 | 64][..]].concat();
    sender.send(&mut all, (3, false), (HEADERS, END_HEADERS), &again);
    assert_eq!(all.ended(7, 3).route.as_deref(), Some("/a.B/C"));
    sender.numbers[0] += 1;
    sender.send(&mut all, (7, false), (HEADERS, END_HEADERS), &again);
    assert_eq!((all.ended(7, 7), all.unread()), (Call::default(), 1));
    sender.send(&mut all, (9, false), (HEADERS, END_HEADERS), &request("/a.B/D"));
    assert_eq!(all.ended(7, 9).route.as_deref(), Some("/a.B/D"), "what comes then is known again");
    // The end of a block whose beginning was missed.
    sender.numbers[0] += 1;
    sender.send(&mut all, (11, false), (CONTINUATION, END_HEADERS), &request("/a.B/E"));
    assert_eq!((all.ended(7, 11), all.unread()), (Call::default(), 1));
}

#[test]
fn a_promise_is_of_no_request_and_its_fields_count_for_others() {
    let (mut all, mut sender) = begin(192);
    sender.send(&mut all, (1, false), (HEADERS, END_HEADERS), &request("/"));
    let promise = [&[0, 0, 0, 2][..], &answer("204", "0")].concat();
    sender.send(&mut all, (1, true), (PROMISE, END_HEADERS), &promise);
    sender.send(&mut all, (1, true), (HEADERS, END_HEADERS), &[0x80 | 63]);
    assert_eq!(all.ended(7, 1).status, Some(204));
    // One that is continued.
    sender.send(&mut all, (3, false), (HEADERS, END_HEADERS), &request("/"));
    let (first, rest) = promise.split_at(9);
    sender.send(&mut all, (3, true), (PROMISE, 0), first);
    sender.send(&mut all, (3, true), (CONTINUATION, END_HEADERS), rest);
    let call = all.ended(7, 3);
    assert_eq!((call.route.as_deref(), call.status, call.grpc_status, all.unread()), (Some("/"), None, None, 0));
}

#[test]
fn what_a_client_says_of_statuses_is_no_answer() {
    let (mut all, mut sender) = begin(192);
    let block = [request("/a.B/C"), answer("500", "13")].concat();
    sender.send(&mut all, (1, false), (HEADERS, END_HEADERS), &block);
    let call = all.ended(7, 1);
    assert_eq!((call.route.as_deref(), call.status, call.grpc_status), (Some("/a.B/C"), None, None));
    // Nor in trailers.
    sender.send(&mut all, (3, false), (HEADERS, END_HEADERS), &request("/a.B/D"));
    sender.send(&mut all, (3, false), (HEADERS, END_HEADERS | END_STREAM), &answer("500", "13"));
    let call = all.ended(7, 3);
    assert_eq!((call.route.as_deref(), call.status, call.grpc_status), (Some("/a.B/D"), None, None));
}

#[test]
fn of_a_request_without_room_nothing_is_kept_but_the_table() {
    let (mut all, mut sender) = begin(192);
    sender.has_room = false;
    sender.send(&mut all, (1, false), (HEADERS, END_HEADERS), &request("/a.B/C"));
    assert_eq!((all.calls, all.ended(7, 1)), (0, Call::default()));
    sender.has_room = true;
    sender.send(&mut all, (3, false), (HEADERS, END_HEADERS), &[0x80 | 62, 0x80 | 63, 0x80 | 64]);
    assert_eq!(all.ended(7, 3).route.as_deref(), Some("/a.B/C"));
}

#[test]
fn what_is_kept_is_bounded_and_who_has_most_loses_it() {
    let (mut all, mut sender) = begin(192);
    let mut modest = sender_on(8);
    modest.send(&mut all, (1, false), (HEADERS, END_HEADERS), &request("/kept"));
    for n in 0..MOST_CALLS as u32 + 10 {
        sender.send(&mut all, (2 * n + 1, false), (HEADERS, END_HEADERS), &[0x83, 0x84]);
    }
    assert!(all.calls <= MOST_CALLS && all.unread() >= MOST_CALLS as u64 / 4, "{}", all.calls);
    assert_eq!(all.ended(8, 1).route.as_deref(), Some("/kept"));
    // A block without an end.
    let (mut all, mut sender) = begin(192);
    sender.send(&mut all, (1, false), (HEADERS, 0), &[0x84]);
    for _ in 0..1_000 {
        sender.send(&mut all, (1, false), (CONTINUATION, 0), &[0x84; 192]);
    }
    assert_eq!((all.unfinished, all.unread()), (0, 1), "64 KiB of one are too much");
}

#[test]
fn blocks_without_an_end_are_bounded_in_sum_and_a_block_that_ends_takes_nothing() {
    let (mut all, mut modest) = begin(192);
    modest.send(&mut all, (1, false), (HEADERS, END_HEADERS), &[request("/kept"), vec![0x84; 2_000]].concat());
    assert_eq!(all.unfinished, 0);
    modest.send(&mut all, (3, false), (HEADERS, 0), &[0x80 | 62, 0x80 | 63]);
    for connection in 100..1_100 {
        let mut sender = sender_on(connection);
        sender.send(&mut all, (1, false), (HEADERS, 0), &[0x84; 30_000]);
        let sum: usize = all.of.values().map(Connection::unfinished).sum();
        assert!(all.unfinished == sum && sum <= MOST_UNFINISHED, "{sum}");
    }
    assert!(all.unread() > 0);
    modest.send(&mut all, (3, false), (CONTINUATION, END_HEADERS), &[0x80 | 64]);
    assert_eq!((all.ended(7, 3).route.as_deref(), all.unread()), (Some("/kept"), 0), "others' blocks are not its");
}

#[test]
fn fields_are_bounded_in_sum() {
    let (mut all, mut modest) = begin(192);
    modest.send(&mut all, (1, false), (HEADERS, END_HEADERS), &request("/kept"));
    let block: Vec<u8> = (0..100).flat_map(|_| literal("x", "y")).collect();
    for connection in 100..3_000 {
        let mut sender = sender_on(connection);
        sender.send(&mut all, (1, false), (HEADERS, END_HEADERS), &block);
        assert!(all.fields <= MOST_FIELDS, "{}", all.fields);
    }
    assert!(all.unread() > 0);
    modest.send(&mut all, (3, false), (HEADERS, END_HEADERS), &[0x80 | 62, 0x80 | 63, 0x80 | 64]);
    assert_eq!(all.ended(7, 3).route.as_deref(), Some("/kept"));
}

#[test]
fn who_has_many_connections_loses_before_another_user_whose_one_has_more() {
    let (mut all, mut honest) = begin(192);
    honest.user = 1;
    let fields = |count| (0..count).flat_map(|_| literal("x", "y")).collect::<Vec<u8>>();
    honest.send(&mut all, (1, false), (HEADERS, END_HEADERS), &[fields(60), request("/kept")].concat());
    for connection in 100..12_000 {
        sender_on(connection).send(&mut all, (1, false), (HEADERS, END_HEADERS), &fields(31));
        assert!(all.fields <= MOST_FIELDS, "{}", all.fields);
    }
    assert!(all.unread() > 0);
    honest.send(&mut all, (3, false), (HEADERS, END_HEADERS), &[0x80 | 62, 0x80 | 63, 0x80 | 64]);
    assert_eq!(all.ended(7, 3).route.as_deref(), Some("/kept"));
}

#[test]
fn an_answer_alone_tells_grpc_where_the_requests_content_type_was_missed() {
    let (mut all, mut sender) = begin(192);
    sender.numbers[0] += 1;
    let block = [&[0x83][..], &literal(":path", "/opentelemetry.proto.Trace/Export"), &[0x80 | 70]].concat();
    sender.send(&mut all, (1, false), (HEADERS, END_HEADERS), &block);
    sender.send(&mut all, (1, true), (HEADERS, END_HEADERS), &answer("200", "0"));
    let call = all.ended(7, 1);
    assert_eq!((call.route.as_deref(), call.is_grpc), (Some("/opentelemetry.proto.Trace/Export"), true));
}
