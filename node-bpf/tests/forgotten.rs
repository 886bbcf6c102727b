//! Processes whose end was not reported are removed all the same. Alone in its program: it writes
//! into the kernel's maps of all of this process's recorders.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod common;

use common::{Cgroup, Job, Recorder, can_capture, kernel_keys, kernel_maps};
use libbpf_rs::{MapCore, MapFlags};
use node_bpf::CaptureConfig;

#[test]
fn a_process_whose_end_was_not_reported_is_removed() {
    if !can_capture() {
        return;
    }
    let cgroup = Cgroup::new();
    let recorder = Recorder::start(CaptureConfig { system_libraries: false, ..cgroup.capturing([]) });
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let mut lives = Job(std::process::Command::new("sleep").arg("600").spawn().unwrap());
    // the state after the record of its end found no room, or after it ended just when it was found
    let put = |name: &str, pid: u32, more: usize| {
        for map in kernel_maps(name) {
            let key = [&pid.to_ne_bytes()[..], &vec![7; more][..]].concat();
            map.update(&key, &vec![0; map.value_size() as usize], MapFlags::ANY).unwrap();
        }
    };
    for pid in [ended.id(), lives.0.id()] {
        put("tracked", pid, 0);
        put("comms", pid, 12);
    }
    let kept = |pid: u32| ["tracked", "comms"].map(|name| kernel_keys(name).contains(&pid));
    common::wait_for("it to be forgotten", || kept(ended.id()) == [false, false]);
    assert_eq!(kept(lives.0.id()), [true, true], "the other one lives");
    lives.0.kill().unwrap();
    lives.0.wait().unwrap();
    common::wait_for("it to be forgotten, too", || kept(lives.0.id()) == [false, false]);
    recorder.stop();
}
