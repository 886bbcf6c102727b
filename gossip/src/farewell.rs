//! How a node that leaves makes sure that somebody knows: it tells some members directly, and waits
//! until they have been sent it. Those pass it on. That it leaves stands in its state before
//! (`driver`).

use std::net::SocketAddr;
use std::time::Duration;

use chitchat::ChitchatHandle;

use crate::link::LinkTransport;
use crate::member::Member;

/// Members told at first, and as many more after so many looks at whether enough of them have been:
/// some may just have gone themselves.
const AT_A_TIME: usize = 8;
const LOOKS_A_CALL: usize = 10;

/// Half of the first ones, or as many others, must have been sent the farewell before the node
/// goes. It looks so often, and at most so many times: not until a moment of the clock, which would
/// be over at once on a host that stands still for a while.
const LOOK: Duration = Duration::from_millis(20);
const LOOKS: usize = 100;
/// What the link then has to get the last message out.
const LINK_TIME: Duration = Duration::from_millis(150);

/// Whom a leaving node tells, the first ones first: those behind it in the list, then those before.
/// So of many that leave one after the other not all turn to the same few, who are perhaps the
/// first that went.
pub(crate) fn whom(members: &[Member]) -> Vec<SocketAddr> {
    let own = members.iter().position(|member| member.is_self).map_or(0, |own| own + 1);
    let (before, behind) = members.split_at(own);
    let others = behind.iter().chain(before).filter(|member| member.is_live() && !member.is_self);
    others.map(|member| member.address).collect()
}

/// Says it to `told`, and more of them while too few can be reached.
pub(crate) async fn say(chitchat: &ChitchatHandle, transport: &LinkTransport, told: &[SocketAddr]) {
    if told.is_empty() {
        return;
    }
    // The farewell goes out with the third message of each exchange; there is no receipt to wait
    // for.
    let enough = transport.completed() + told.len().min(AT_A_TIME).div_ceil(2);
    let mut calls = told.chunks(AT_A_TIME);
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
    use crate::member::MemberState;

    fn member(n: u16, state: MemberState, is_self: bool) -> Member {
        Member {
            name: format!("n{n}"),
            address: ([127, 0, 0, 1], n).into(),
            generation: 1,
            state,
            facts: std::sync::Arc::default(),
            is_self,
        }
    }

    #[test]
    fn the_next_in_the_list_are_told_first_and_nobody_twice() {
        let dead = |n| [3, 6].contains(&n);
        let state = |n| if dead(n) { MemberState::Dead } else { MemberState::Live };
        for own in 1..=8 {
            let members: Vec<Member> = (1..=8).map(|n| member(n, state(n), n == own)).collect();
            let told: Vec<u16> = whom(&members).iter().map(SocketAddr::port).collect();
            let expected: Vec<u16> = (own + 1..=8).chain(1..own).filter(|n| !dead(*n)).collect();
            assert_eq!(told, expected, "of {own}");
        }
        assert!(whom(&[member(1, MemberState::Live, true)]).is_empty());
    }
}
