//! Prints what is sampled of this host: `cargo run -p node-bpf --example samples [SECONDS]`. Needs
//! no privileges.

use std::time::Duration;

use node_bpf::{Sampler, SamplerConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds: u64 = std::env::args().nth(1).unwrap_or_else(|| "3".to_owned()).parse()?;
    let sampler =
        Sampler::start(SamplerConfig::default(), Box::new(|_, _| vec![]), Box::new(|record| println!("{record:?}")))?;
    std::thread::sleep(Duration::from_secs(seconds));
    drop(sampler);
    Ok(())
}
