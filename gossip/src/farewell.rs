//! How a node that leaves lets others know: it sends its state, in which the driver has already
//! marked that it leaves, directly to some members, and waits until the link has taken the
//! messages. Those members pass it on.

use std::net::SocketAddr;
use std::time::Duration;

use chitchat::ChitchatHandle;

use crate::link::LinkTransport;
use crate::member::Member;

/// Members called at first, and in each further group. Another group follows after [`LOOKS_A_CALL`]
/// checks in which too few messages had gone out: some members may just have left themselves.
const AT_A_TIME: usize = 8;
const LOOKS_A_CALL: usize = 10;

/// Half of the first group, or as many others, must have been sent the farewell before the node
/// stops. This is checked every `LOOK`, at most `LOOKS` times. The limit is a count and not an
/// instant, which would have passed at once on a host that was suspended for a while.
const LOOK: Duration = Duration::from_millis(20);
const LOOKS: usize = 100;
/// Time that the link gets afterwards to send the last message.
const LINK_TIME: Duration = Duration::from_millis(150);

/// The live members in the order in which a leaving node calls them: those after it in the list,
/// then those before it. So many nodes that leave one after the other do not all call the same few,
/// which may have been the first to leave.
pub(crate) fn whom(members: &[Member]) -> Vec<SocketAddr> {
    let own = members.iter().position(|member| member.is_self).map_or(0, |own| own + 1);
    let (before, behind) = members.split_at(own);
    let others = behind.iter().chain(before).filter(|member| member.is_live() && !member.is_self);
    others.map(|member| member.address).collect()
}

/// Sends the farewell to the first of `receivers`, and to more of them while too few can be
/// reached.
pub(crate) async fn send(chitchat: &ChitchatHandle, transport: &LinkTransport, receivers: &[SocketAddr]) {
    if receivers.is_empty() {
        return;
    }
    // The farewell goes out with the third message of each exchange; there is no receipt to wait
    // for.
    let enough = transport.completed() + receivers.len().min(AT_A_TIME).div_ceil(2);
    let mut calls = receivers.chunks(AT_A_TIME);
    for look in 0..LOOKS {
        if transport.completed() >= enough {
            break;
        }
        if look % LOOKS_A_CALL == 0
            && let Some(called) = calls.next()
        {
            transport.hurry(called.len());
            for to in called {
                let _ = chitchat.gossip(*to);
            }
        }
        tokio::time::sleep(LOOK).await;
    }
    tokio::time::sleep(LINK_TIME).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::{MemberState, test_member};

    fn member(n: u16, state: MemberState, is_self: bool) -> Member {
        Member { is_self, ..test_member(n, state) }
    }

    #[test]
    fn the_next_in_the_list_are_told_first_and_nobody_twice() {
        let dead = |n| [3, 6].contains(&n);
        let state = |n| if dead(n) { MemberState::Dead } else { MemberState::Live };
        for own in 1..=8 {
            let members: Vec<Member> = (1..=8).map(|n| member(n, state(n), n == own)).collect();
            let called: Vec<u16> = whom(&members).iter().map(SocketAddr::port).collect();
            let expected: Vec<u16> = (own + 1..=8).chain(1..own).filter(|n| !dead(*n)).collect();
            assert_eq!(called, expected, "of {own}");
        }
        assert!(whom(&[member(1, MemberState::Live, true)]).is_empty());
    }
}
