//! The wait-for graph: who waits in calls for whom, and where that ends.
//!
//! A rank's time in calls is waiting for the rank that the call is with; where the call does not
//! say, for any of the others. Whom a rank waits for may be waiting itself. So blame walks: at each
//! rank it stays with the share of time by which the rank computes longer than the one that computes
//! least, and else goes on to those it waits for. It starts at every rank with what that one waits,
//! and gathers at the sink of the graph.

/// One rank: its share of time outside calls, and the parts of its time in calls by the places of
/// those they are with.
#[derive(Debug, Clone, Default)]
pub(super) struct Node {
    pub(super) compute: f64,
    pub(super) in_calls: f64,
    pub(super) with: Vec<(usize, f64)>,
}

/// Steps after which what still walks is left where it is.
const STEPS: usize = 200;
/// So little that still walks is left where it is.
const LITTLE: f64 = 1e-3;
/// Least part that a rank keeps of what comes to it.
const LEAST: f64 = 0.01;

/// The share of all waiting that ends at each rank; they add up to 1 where anybody waits.
pub(super) fn blame(ranks: &[Node]) -> Vec<f64> {
    let mut blamed = vec![0.0; ranks.len()];
    let least = ranks.iter().map(|rank| rank.compute).fold(1.0, f64::min);
    let total: f64 = ranks.iter().map(|rank| rank.in_calls).sum();
    if ranks.len() < 2 || total <= 0.0 {
        return blamed;
    }
    // Waiting goes to others first; only they may be its end.
    let mut walking = vec![0.0; ranks.len()];
    for (at, rank) in ranks.iter().enumerate() {
        pass_on(ranks, at, rank.in_calls / total, &mut walking);
    }
    for _ in 0..STEPS {
        let mut next = vec![0.0; ranks.len()];
        for (at, rank) in ranks.iter().enumerate() {
            let stays = ((rank.compute - least) / (1.0 - least).max(LEAST)).clamp(LEAST, 1.0);
            blamed[at] += walking[at] * stays;
            pass_on(ranks, at, walking[at] * (1.0 - stays), &mut next);
        }
        walking = next;
        if walking.iter().sum::<f64>() < LITTLE {
            break;
        }
    }
    blamed.iter_mut().zip(walking).for_each(|(blamed, walking)| *blamed += walking);
    blamed
}

/// Gives what is at a rank to those that it waits for.
fn pass_on(ranks: &[Node], at: usize, amount: f64, to: &mut [f64]) {
    if amount <= 0.0 {
        return;
    }
    let rank = &ranks[at];
    let known: f64 = rank.with.iter().map(|(_, part)| part).sum::<f64>().min(1.0);
    for (peer, part) in &rank.with {
        to[*peer] += amount * part;
    }
    let each = amount * (1.0 - known) / (ranks.len() - 1) as f64;
    if each > 0.0 {
        to.iter_mut().enumerate().filter(|(other, _)| *other != at).for_each(|(_, sum)| *sum += each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(compute: f64, with: &[(usize, f64)]) -> Node {
        Node { compute, in_calls: 1.0 - compute, with: with.to_vec() }
    }

    fn sink(ranks: &[Node]) -> usize {
        let blamed = blame(ranks);
        assert!((blamed.iter().sum::<f64>() - 1.0).abs() < 1e-6, "{blamed:?}");
        (0..ranks.len()).max_by(|a, b| blamed[*a].total_cmp(&blamed[*b])).unwrap()
    }

    #[test]
    fn blame_walks_along_a_chain_to_its_end() {
        // 0 waits for 1, 1 for 2, 2 for 3; 3 computes.
        let chain = [node(0.2, &[(1, 1.0)]), node(0.2, &[(2, 1.0)]), node(0.2, &[(3, 1.0)]), node(0.97, &[(2, 1.0)])];
        assert_eq!(sink(&chain), 3);
        assert!(blame(&chain)[3] > 0.5);
    }

    #[test]
    fn in_a_ring_both_neighbours_lead_to_the_slow_one() {
        let ring: Vec<Node> = (0..6usize)
            .map(|rank| node(if rank == 4 { 0.95 } else { 0.3 }, &[((rank + 5) % 6, 0.5), ((rank + 1) % 6, 0.5)]))
            .collect();
        assert_eq!(sink(&ring), 4);
    }

    #[test]
    fn where_calls_do_not_say_with_whom_all_others_may_be_meant() {
        assert_eq!(sink(&[node(0.3, &[]), node(0.3, &[]), node(0.98, &[]), node(0.3, &[])]), 2);
        assert_eq!(blame(&[node(1.0, &[]), node(1.0, &[])]), [0.0, 0.0], "nobody waits");
        assert_eq!(blame(&[node(0.5, &[])]), [0.0]);
    }
}
