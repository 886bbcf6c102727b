//! Every valid and every saved input is fed again, and some with a byte changed, lost or doubled:
//! no reader of outside bytes panics. `make fuzz` looks for more.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use scenarios::fuzz::{Target, start};

/// Changed inputs of each target: what takes long gets fewer.
fn changed(target: Target) -> usize {
    match target {
        Target::Elf | Target::Frames | Target::Gossip | Target::Records | Target::Facts => 2_000,
        Target::Trust | Target::Csr | Target::Python | Target::Tasks | Target::GossipStates | Target::Published => 300,
        Target::Tokens | Target::Sql | Target::ForeignDb | Target::Catalogs | Target::Local | Target::Verdicts => 60,
    }
}

/// One of the seeds, changed in one to eight places.
fn change(random: &mut StdRng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut input = seeds[random.random_range(0..seeds.len())].clone();
    for _ in 0..random.random_range(1..=8) {
        if input.is_empty() {
            break;
        }
        let at = random.random_range(0..input.len());
        match random.random_range(0..5) {
            0 => input[at] ^= 1 << random.random_range(0..8),
            1 => input[at] = random.random(),
            2 => input.truncate(at),
            3 => drop(input.remove(at)),
            _ => {
                let end = (at + 32).min(input.len());
                let piece = input[at..end].to_vec();
                input.splice(at..at, piece);
            }
        }
    }
    input
}

#[test]
fn saved_and_changed_inputs_do_no_harm() {
    let mut random = StdRng::seed_from_u64(7);
    for target in Target::ALL {
        start(target).expect("what fuzzing starts with");
        let seeds = target.seeds().expect("seeds");
        assert!(!seeds.is_empty());
        let fresh: Vec<Vec<u8>> = (0..changed(target)).map(|_| change(&mut random, &seeds)).collect();
        for input in seeds.iter().chain(&fresh) {
            let fed = std::panic::catch_unwind(|| target.feed(input));
            assert!(matches!(fed, Ok(Ok(()))), "{}: {fed:?} on {:?}", target.name(), String::from_utf8_lossy(input));
        }
    }
}
