//! What sampling costs: `cargo run --release -p rankmesh-explain --example sampled -- [PAIRS]`
//! (`make bench NAME=stacks`). A Python program, 30 functions deep, counts its steps; it is looked at
//! for a second while it is sampled 20 times, and for a second while it is not, and so again, the
//! order changing; pairs without any sampling show what differs by itself.
#![allow(missing_docs)]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use explain::stacks::{Plan, Sampler};

const PROGRAM: &str = r#"
import mmap, struct, sys
steps = open(sys.argv[1], "r+b")
counter = mmap.mmap(steps.fileno(), 8)
def work(done=[0]):
    total = 0
    for value in range(2000):
        total += value * value
    done[0] += 1
    counter[0:8] = struct.pack("q", done[0])
def deep(level):
    if level:
        deep(level - 1)
    else:
        while True:
            work()
deep(28)
"#;

const SAMPLES: u32 = 20;
const EVERY: Duration = Duration::from_millis(50);
/// No sampling ends early for it: the cost is what is measured.
const BUDGET: Duration = Duration::from_secs(1);

struct Busy(Child, tempfile::TempDir);

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Busy {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("steps"), [0; 8]).expect("a file");
        let mut python = Command::new("python3");
        python.args(["-c", PROGRAM]).arg(dir.path().join("steps")).stdin(Stdio::null());
        let busy = Self(python.spawn().expect("python3 starts"), dir);
        let until = Instant::now() + Duration::from_secs(20);
        while busy.steps() == 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(busy.steps() > 0, "the program does not run");
        busy
    }

    fn steps(&self) -> i64 {
        let bytes = std::fs::read(self.1.path().join("steps")).expect("the counter");
        i64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
    }

    /// Steps a second during a second.
    fn rate(&self, during: impl FnOnce()) -> f64 {
        let (from, start) = (self.steps(), Instant::now());
        during();
        std::thread::sleep((EVERY * SAMPLES).saturating_sub(start.elapsed()));
        (self.steps() - from) as f64 / start.elapsed().as_secs_f64()
    }
}

fn middle(values: &[f64]) -> f64 {
    stats::median(values.iter().copied()).unwrap_or(f64::NAN)
}

fn main() {
    let pairs: usize = std::env::args().nth(1).map_or(20, |n| n.parse().expect("a number of pairs"));
    let busy = Busy::start();
    let mut sampler = Sampler::default();
    let plan = Plan { samples: SAMPLES, every: EVERY, cpu_budget: BUDGET };
    let mut cpu_ms = Vec::new();
    let mut sampled = |busy: &Busy| {
        busy.rate(|| {
            let profile = sampler.profile(&[busy.0.id()], &plan, || false).remove(0);
            assert_eq!(profile.samples, SAMPLES, "{profile:?}");
            cpu_ms.push(profile.cpu_ns as f64 / 1e6);
        })
    };
    sampled(&busy);
    let (mut ratios, mut null) = (Vec::new(), Vec::new());
    for pair in 0..pairs {
        let (with, without) = if pair % 2 == 0 {
            let with = sampled(&busy);
            (with, busy.rate(|| ()))
        } else {
            let without = busy.rate(|| ());
            (sampled(&busy), without)
        };
        ratios.push(with / without);
        null.push(busy.rate(|| ()) / busy.rate(|| ()));
    }
    // The first profile reads the program's files.
    let first = cpu_ms.remove(0);
    println!("figure stacks_slower {:.2} % aim <= 0.5", (1.0 - middle(&ratios)) * 100.0);
    println!("figure stacks_slower_null {:.2} %", (1.0 - middle(&null)).abs() * 100.0);
    println!("figure stacks_cpu_first {first:.2} ms aim <= 5");
    println!("figure stacks_cpu {:.2} ms aim <= 5", middle(&cpu_ms));
    println!("figure stacks_cpu_most {:.2} ms aim <= 5", cpu_ms.iter().copied().fold(0.0, f64::max));
}
