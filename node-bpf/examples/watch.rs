//! Prints what capture sees for some seconds: `cargo run -p node-bpf --example watch -- SECONDS
//! [CGROUP_DIRECTORY]`.

use std::time::Duration;

use node_bpf::{Capture, CaptureConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let seconds: u64 = arguments.next().unwrap_or_else(|| "10".to_owned()).parse()?;
    let config = CaptureConfig { cgroup: arguments.next().map(Into::into), ..CaptureConfig::default() };
    let capture = Capture::start(config, Box::new(|record| println!("{record:?}")))?;
    eprintln!("{:#?}", capture.status().files);
    std::thread::sleep(Duration::from_secs(seconds));
    let status = capture.status();
    capture.stop();
    let busy = status.probes.iter().filter(|probe| probe.hits > 0);
    eprintln!("{:?} {} processes {:?}", status.mode, status.processes, status.problems);
    status.classes.iter().for_each(|class| eprintln!("{class:?}"));
    busy.for_each(|probe| eprintln!("{probe:?}"));
    Ok(())
}
