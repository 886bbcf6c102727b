use model::health::CallerSeen;

use super::*;

const HOUR: i64 = 3_600_000_000_000;

fn way() -> PathSeen {
    PathSeen { bound_ns: 50_000, rtt_ns: 100_000, mtu: 1_452, sent: 500, ..PathSeen::default() }
}

/// Nodes a, b, c that all reach each other; a asked.
fn healthy() -> Examination {
    let names = ["a", "b", "c"];
    let member = |name: &str| Examined {
        name: name.to_owned(),
        address: address(name),
        state: "live".to_owned(),
        version: "1.0.0".to_owned(),
        health: Some(Health {
            node: name.to_owned(),
            capture: "on".to_owned(),
            certificate_ends_ns: 100 * HOUR,
            certificate_renews_ns: 50 * HOUR,
            now_ns: HOUR,
            reached: names
                .iter()
                .filter(|other| **other != name)
                .map(|other| Reached {
                    node: (*other).to_owned(),
                    address: address(other).parse().ok(),
                    way: Some(way()),
                    error: None,
                    kind: None,
                })
                .collect(),
            ..Health::default()
        }),
        ..Examined::default()
    };
    Examination { asked_by: "a".to_owned(), members: names.iter().map(|name| member(name)).collect(), neighbours: None }
}

fn address(name: &str) -> String {
    format!("10.0.0.{}:7117", name.as_bytes()[0] - b'a' + 1)
}

fn health<'a>(examination: &'a mut Examination, name: &str) -> &'a mut Health {
    let member = examination.members.iter_mut().find(|member| member.name == name).expect("a member");
    member.health.as_mut().expect("its health")
}

fn cut(examination: &mut Examination, from: &str, to: &str) {
    let reached = &mut health(examination, from).reached;
    let reached = reached.iter_mut().find(|reached| reached.node == to).expect("it was tried");
    reached.way = None;
    reached.error = Some("unreachable: connection timed out".to_owned());
}

fn called(examination: &mut Examination, by: &str, from: &str, completed: u64) {
    let address = address(from).parse().expect("an address");
    let node = (completed > 0).then(|| from.to_owned());
    health(examination, by).callers.push(CallerSeen {
        address,
        node,
        started: 3,
        completed,
        unfinished: if completed == 0 { 3 } else { 0 },
        last_ago_ms: 500,
    });
}

fn whats(examination: &Examination) -> Vec<(String, &'static str)> {
    judge(examination).into_iter().map(|finding| (finding.node, finding.what)).collect()
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    assert_eq!(judge(&healthy()), []);
}

#[test]
fn the_direction_of_a_block_follows_from_which_calls_arrived() {
    // Packets of a reach b, those of b do not reach a: neither completes a handshake.
    let mut examination = healthy();
    cut(&mut examination, "a", "b");
    cut(&mut examination, "b", "a");
    called(&mut examination, "b", "a", 0);
    let findings = judge(&examination);
    assert_eq!(whats(&examination), [("a".to_owned(), "blocked one way"), ("b".to_owned(), "blocked one way")]);
    assert!(findings[0].detail.contains("answers of b do not arrive at a"), "{findings:?}");
    assert!(findings[1].detail.contains("nothing of b arrives at a"), "{findings:?}");
    assert!(findings[1].remedy.contains("of a in for b"), "{findings:?}");

    let mut examination = healthy();
    cut(&mut examination, "a", "b");
    cut(&mut examination, "b", "a");
    assert_eq!(whats(&examination), [("a".to_owned(), "blocked both ways"), ("b".to_owned(), "blocked both ways")]);

    // A connection that only one of them can begin (NAT).
    let mut examination = healthy();
    cut(&mut examination, "c", "b");
    assert_eq!(whats(&examination), [("c".to_owned(), "blocked one way")]);
    assert!(judge(&examination)[0].remedy.contains("--advertise"));
}

#[test]
fn of_a_silent_node_the_asker_says_what_it_knows() {
    use FailureKind::{NothingListens, OtherRelease, Refused, Unreachable, WrongNode};
    for (kind, calls, what) in [
        (Unreachable, false, "unreachable or blocked both ways"),
        (Unreachable, true, "blocked one way"),
        (NothingListens, false, "no agent"),
        (OtherRelease, false, "release"),
        (WrongNode, false, "name"),
        (Refused, false, "certificate"),
    ] {
        let mut examination = healthy();
        if calls {
            called(&mut examination, "a", "b", 0);
        }
        examination.members[1].health = None;
        examination.members[1].kind = Some(kind);
        assert_eq!(whats(&examination), [("b".to_owned(), what)], "{kind:?}");
    }
}

#[test]
fn a_silent_node_that_calls_from_another_address_is_behind_nat() {
    let mut examination = healthy();
    let natted: std::net::SocketAddr = "192.168.7.7:41000".parse().expect("an address");
    for by in ["a", "c"] {
        called(&mut examination, by, "b", 1);
        health(&mut examination, by).callers[0].address = natted;
    }
    examination.members[1].health = None;
    examination.members[1].error = Some("unreachable: connection timed out".to_owned());
    let findings = judge(&examination);
    assert_eq!(whats(&examination), [("b".to_owned(), "address")]);
    assert_eq!(findings[0].state, State::Wrong);
    assert!(findings[0].detail.contains("10.0.0.2:7117 and calls from 192.168.7.7"), "{findings:?}");
    assert!(findings[0].remedy.contains("--advertise"), "{findings:?}");
}

#[test]
fn what_nodes_say_of_themselves_is_judged() {
    let mut examination = healthy();
    health(&mut examination, "a").certificate_ends_ns = 0;
    health(&mut examination, "b").now_ns = 60 * HOUR;
    health(&mut examination, "c").now_ns = 101 * HOUR;
    health(&mut examination, "c").capture = "failed: no BTF".to_owned();
    let findings = judge(&examination);
    assert_eq!(
        whats(&examination),
        [("b", "certificate"), ("c", "certificate"), ("c", "recording")].map(|(n, w)| (n.to_owned(), w))
    );
    assert_eq!(findings[0].state, State::Warning);
    assert_eq!(findings[1].state, State::Wrong);
}

#[test]
fn recording_that_is_dear_is_said_with_its_price() {
    let mut examination = healthy();
    health(&mut examination, "a").recording_ppm = Some(9_000);
    let b = health(&mut examination, "b");
    (b.recording_ppm, b.recorded_calls_per_second, b.recorded_call_ns) = (Some(82_000), Some(33_000), Some(1_500));
    let findings = judge(&examination);
    assert_eq!(whats(&examination), [("b".to_owned(), "cost")]);
    assert!(findings[0].detail.contains("8.2 %") && findings[0].detail.contains("33000 calls"), "{findings:?}");
}

#[test]
fn ways_clocks_releases_and_names_are_judged() {
    let mut examination = healthy();
    let change = |examination: &mut Examination, of: &dyn Fn(&mut PathSeen)| {
        of(health(examination, "a").reached[0].way.as_mut().expect("a way"));
    };
    change(&mut examination, &|way| way.lost = 50);
    assert_eq!(whats(&examination), [("a".to_owned(), "packet loss")]);
    change(&mut examination, &|way| (way.lost, way.mtu) = (0, 1_200));
    assert_eq!(whats(&examination), [("a".to_owned(), "MTU")]);
    change(&mut examination, &|way| (way.mtu, way.offset_ns) = (1_452, -2 * CLOCK_NS));
    assert_eq!(whats(&examination), [("b".to_owned(), "clock")]);
    change(&mut examination, &|way| way.offset_ns = 0);
    examination.members[2].version = "0.9.0".to_owned();
    assert_eq!(whats(&examination), [("c".to_owned(), "release")]);
    examination.members[2].version = "1.0.0".to_owned();
    called(&mut examination, "b", "c", 1);
    assert_eq!(whats(&examination), []);
    called(&mut examination, "c", "c", 1);
    health(&mut examination, "c").callers[0].address = "172.16.0.9:7117".parse().expect("an address");
    assert_eq!(whats(&examination), [], "what it called itself at before a restart");
    health(&mut examination, "b").callers[0].address = "192.168.7.7:41000".parse().expect("an address");
    assert_eq!(whats(&examination), [("c".to_owned(), "address")]);
    called(&mut examination, "a", "c", 1);
    assert_eq!(whats(&examination), [("c".to_owned(), "name")], "one name on two hosts");
}
