//! GPUs through NVML (nvml-wrapper loads the library when there is one). No library and no driver
//! are the normal state of a host without GPUs: they are looked for again now and then, for a
//! driver may be installed later.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::{Device, Nvml};

use record::GpuSample;

/// Between two attempts to load the library.
const RETRY: Duration = Duration::from_secs(60);

/// NVML, when it could be loaded.
pub(super) struct GpuSampler {
    library: OsString,
    nvml: Option<Nvml>,
    tried: Option<Instant>,
}

impl GpuSampler {
    pub(super) fn new(library: Option<&Path>) -> Self {
        let library = library.map_or_else(|| "libnvidia-ml.so.1".into(), Into::into);
        GpuSampler { library, nvml: None, tried: None }
    }

    /// A sample of every GPU; values that it does not report are none.
    pub(super) fn sample(&mut self, ts_ns: i64) -> Vec<GpuSample> {
        if self.nvml.is_none() && self.tried.is_none_or(|at| at.elapsed() >= RETRY) {
            self.tried = Some(Instant::now());
            match Nvml::builder().lib_path(&self.library).init() {
                Ok(nvml) => self.nvml = Some(nvml),
                Err(error) => tracing::debug!(%error, "no NVML"),
            }
        }
        let Some(nvml) = &self.nvml else { return vec![] };
        let Ok(count) = nvml.device_count() else {
            self.nvml = None; // the driver went away
            return vec![];
        };
        (0..count).filter_map(|gpu| Some(sample(ts_ns, gpu, &nvml.device_by_index(gpu).ok()?))).collect()
    }
}

fn sample(ts_ns: i64, gpu: u32, device: &Device<'_>) -> GpuSample {
    let memory = device.memory_info().ok();
    let reasons = device.current_throttle_reasons().ok();
    GpuSample {
        ts_ns,
        gpu,
        uuid: device.uuid().ok(),
        model: device.name().ok(),
        utilisation_pct: device.utilization_rates().ok().map(|rates| rates.gpu),
        memory_used_bytes: memory.as_ref().map(|memory| memory.used),
        memory_total_bytes: memory.as_ref().map(|memory| memory.total),
        power_mw: device.power_usage().ok(),
        temperature_c: device.temperature(TemperatureSensor::Gpu).ok(),
        sm_clock_mhz: device.clock_info(Clock::SM).ok(),
        mem_clock_mhz: device.clock_info(Clock::Memory).ok(),
        throttle_reasons: reasons.map(|reasons| reasons.bits()),
        throttle: reasons.map(in_words),
    }
}

/// The reasons why clocks are throttled, as text; an idle GPU's low clocks are not.
fn in_words(reasons: ThrottleReasons) -> String {
    const WORDS: &[(ThrottleReasons, &str)] = &[
        (ThrottleReasons::APPLICATIONS_CLOCKS_SETTING, "application clocks"),
        (ThrottleReasons::SW_POWER_CAP, "power cap"),
        (ThrottleReasons::HW_SLOWDOWN, "hardware slowdown"),
        (ThrottleReasons::SYNC_BOOST, "sync boost"),
        (ThrottleReasons::SW_THERMAL_SLOWDOWN, "software thermal slowdown"),
        (ThrottleReasons::HW_THERMAL_SLOWDOWN, "hardware thermal slowdown"),
        (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "power brake"),
        (ThrottleReasons::DISPLAY_CLOCK_SETTING, "display clocks"),
    ];
    let words: Vec<&str> = WORDS.iter().filter(|(bit, _)| reasons.contains(*bit)).map(|(_, word)| *word).collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A library with NVML's calls (nvml.h, driver 510 and later) for two GPUs, the second of which
    /// reports little.
    const STAND_IN: &str = r#"
#include <string.h>
typedef int ret; typedef struct { int index; } *dev;
static struct { int index; } gpus[2] = {{0}, {1}};
ret nvmlInit_v2(void) { return 0; }
ret nvmlInitWithFlags(unsigned f) { return 0; }
ret nvmlShutdown(void) { return 0; }
ret nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
ret nvmlDeviceGetHandleByIndex_v2(unsigned i, dev *d) { *d = (dev)&gpus[i]; return 0; }
ret nvmlDeviceGetUUID(dev d, char *s, unsigned n) { strncpy(s, d->index ? "GPU-b" : "GPU-a", n); return 0; }
ret nvmlDeviceGetUtilizationRates(dev d, unsigned *u) { if (d->index) return 3; u[0] = 87; u[1] = 40; return 0; }
ret nvmlDeviceGetMemoryInfo_v2(dev d, unsigned char *m) {
  if (d->index) return 3;
  unsigned long long v[4] = {80ull << 30, 1ull << 30, 9ull << 30, 70ull << 30};
  memcpy(m + 8, v, sizeof v);
  return 0;
}
ret nvmlDeviceGetPowerUsage(dev d, unsigned *p) { *p = 350000; return d->index ? 3 : 0; }
ret nvmlDeviceGetTemperature(dev d, int s, unsigned *t) { *t = 81; return 0; }
ret nvmlDeviceGetClockInfo(dev d, int c, unsigned *mhz) { if (d->index) return 3; *mhz = c == 1 ? 1410 : 2619; return 0; }
ret nvmlDeviceGetCurrentClocksThrottleReasons(dev d, unsigned long long *r) { *r = d->index ? 1 : 0x44; return 0; }
"#;

    #[test]
    fn gpus_are_read_through_nvml() {
        let dir = tempfile::tempdir().unwrap();
        let (source, library) = (dir.path().join("nvml.c"), dir.path().join("libnvidia-ml.so.1"));
        std::fs::write(&source, STAND_IN).unwrap();
        let built = Command::new("cc").args(["-shared", "-fPIC", "-w", "-o"]).arg(&library).arg(&source).status();
        if !built.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: needs a C compiler");
            return;
        }
        let samples = GpuSampler::new(Some(&library)).sample(5);
        let full = GpuSample {
            ts_ns: 5,
            gpu: 0,
            uuid: Some("GPU-a".to_owned()),
            model: None,
            utilisation_pct: Some(87),
            memory_used_bytes: Some(70 << 30),
            memory_total_bytes: Some(80 << 30),
            power_mw: Some(350_000),
            temperature_c: Some(81),
            sm_clock_mhz: Some(1410),
            mem_clock_mhz: Some(2619),
            throttle_reasons: Some(0x44),
            throttle: Some("power cap, hardware thermal slowdown".to_owned()),
        };
        let idle = GpuSample {
            ts_ns: 5,
            gpu: 1,
            uuid: Some("GPU-b".to_owned()),
            model: None,
            temperature_c: Some(81),
            throttle_reasons: Some(1),
            throttle: Some(String::new()),
            ..GpuSample::default()
        };
        assert_eq!(samples, [full, idle]);
    }

    #[test]
    fn a_host_without_the_library_has_no_gpus() {
        let mut sampler = GpuSampler::new(Some(Path::new("/no/such/libnvidia-ml.so.1")));
        assert_eq!(sampler.sample(1), []);
        assert!(sampler.tried.is_some());
    }
}
