//! Every saved input is fed again, and a few changed ones of a fixed seed: no reader of outside
//! bytes panics.

use scenarios::fuzz::{self, Mutator, Target};

/// Changed inputs of each target: what takes long gets fewer.
fn changed(target: Target) -> usize {
    match target {
        Target::Frames | Target::Gossip | Target::Records | Target::Facts => 2_000,
        Target::Trust | Target::Csr | Target::Tasks => 300,
        Target::Tokens | Target::Sql | Target::ForeignDb | Target::Catalogs | Target::Local | Target::Verdicts => 60,
    }
}

#[test]
fn saved_and_changed_inputs_do_no_harm() {
    query_planner::memory::install();
    for target in Target::ALL {
        let seeds = target.seeds().expect("seeds");
        assert!(!seeds.is_empty());
        let mut mutator = Mutator::new(7);
        let fresh: Vec<Vec<u8>> = (0..changed(target)).map(|_| mutator.input(&seeds)).collect();
        for input in seeds.iter().chain(&fresh) {
            if let Err(finding) = fuzz::feed(target, input) {
                panic!("{}: {} on {:?}", target.name(), finding.what, String::from_utf8_lossy(&finding.input));
            }
        }
    }
}
