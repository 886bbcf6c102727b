//! The names of MPI's communicators: equal on all ranks, and on every host. The programs name each
//! relative to the job's MPI_COMM_WORLD (`bpf/identity.h`); here the job is added.

/// `RM_WORLD`: MPI_COMM_WORLD relative to itself.
pub(crate) const WORLD: u64 = 1;

/// `Collective::comm_hash` of a communicator of this user's job with this namespace: the namespace is
/// what a process says of itself, so that of another user is another job.
pub(crate) fn communicator(user: u32, namespace: &str, relative: u64) -> u64 {
    let world = world_hash(user, namespace);
    if relative == WORLD { world } else { mix(world, relative) }
}

/// `rm_mix`.
fn mix(identity: u64, word: u64) -> u64 {
    let identity = identity.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let identity = ((identity ^ identity >> 29) ^ word).wrapping_mul(0x94d0_49bb_1331_11eb);
    identity ^ identity >> 32
}

/// FNV-1a over the user's number (little-endian), the job's namespace, a zero byte and "world".
fn world_hash(user: u32, namespace: &str) -> u64 {
    fnv(user.to_le_bytes().into_iter().chain(namespace.bytes()).chain(*b"\0world"))
}

/// FNV-1a.
pub(crate) fn fnv(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes
        .into_iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn communicators_of_different_jobs_and_of_one_differ() {
        let all = [
            communicator(7, "4711", WORLD),
            communicator(7, "4712", WORLD),
            communicator(7, "4711", 2),
            communicator(7, "4712", 2),
            communicator(8, "4711", WORLD),
        ];
        assert!(all.iter().enumerate().all(|(at, hash)| !all[at + 1..].contains(hash)), "{all:x?}");
    }

    /// Those of the first calls on the world and on its children: a job's positions and colours are
    /// small numbers, as the world is.
    #[test]
    fn no_two_ways_to_a_communicator_make_one_identity() {
        let mut all = std::collections::HashMap::from([(WORLD, "the world".to_owned()), (0, "none".to_owned())]);
        let mut parents = vec![(WORLD, String::new())];
        for depth in 0..2 {
            let mut children = vec![];
            for (parent, way) in &parents {
                for position in 0..12 {
                    let whole = mix(*parent, position);
                    // At one position there is one call: a copy, or a split.
                    if (position + depth) % 2 == 0 {
                        children.push((whole, format!("{way}/{position}")));
                    } else {
                        let split = |colour| (mix(whole, colour), format!("{way}/{position}:{colour}"));
                        children.extend((0..12).map(split));
                    }
                }
            }
            for (identity, way) in &children {
                assert_eq!(all.insert(*identity, way.clone()), None, "{way}, depth {depth}");
            }
            parents = children;
        }
    }
}
