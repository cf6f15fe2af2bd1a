//! The settings of function memory.

use std::time::Duration;

use anyhow::ensure;

use super::Options;
use crate::machine;

/// One group of the smallest instances: 12 of 64 MiB.
const TOTAL_MB_MIN: u64 = 768;

/// The settings of function memory; all but the first as in [`memory::Config`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    /// The bound on the memory of all instances.
    pub(crate) bytes_max: u64,
    pub(crate) gc_interval: Duration,
    pub(crate) active_intervals: u32,
    pub(crate) degraded_intervals: u32,
    pub(crate) upload_age_max: Duration,
    pub(crate) buffer_bytes_max: u64,
}

impl Options {
    pub(super) fn memory(&self) -> anyhow::Result<Memory> {
        let defaults = memory::Config::default();
        let gc_interval = self.memory_gc_interval_s.map(Duration::from_secs);
        let upload_age = self.memory_upload_age_days;
        let days = |count: u32| Duration::from_hours(24 * u64::from(count));
        let (active, degraded) = (self.memory_active_intervals, self.memory_degraded_intervals);
        ensure!(
            gc_interval.is_none_or(|interval| (1..=86_400).contains(&interval.as_secs())),
            "--memory-gc-interval-s: 1 to 86400"
        );
        ensure!(
            active.is_none_or(|count| (1..=1000).contains(&count)),
            "--memory-active-intervals: 1 to 1000"
        );
        ensure!(
            degraded.is_none_or(|count| count <= 1000),
            "--memory-degraded-intervals: 0 to 1000"
        );
        ensure!(
            upload_age.is_none_or(|days| (1..=3650).contains(&days)),
            "--memory-upload-age-days: 1 to 3650"
        );
        ensure!(
            self.memory_total_mb
                .is_none_or(|mib| mib == 0 || mib >= TOTAL_MB_MIN),
            "--memory-total-mb: at least {TOTAL_MB_MIN}, or 0 for no function memory"
        );
        let buffer_mb = self.memory_buffer_mb;
        ensure!(
            buffer_mb.is_none_or(|mib| (1..=1 << 30).contains(&mib)),
            "--memory-buffer-mb: 1 to 1073741824"
        );
        Ok(Memory {
            bytes_max: self.memory_total_mb.map_or_else(
                || machine::memory_bytes_by_default().max(TOTAL_MB_MIN << 20),
                |mib| mib << 20,
            ),
            gc_interval: gc_interval.unwrap_or(defaults.gc_interval),
            active_intervals: active.unwrap_or(defaults.active_intervals),
            degraded_intervals: degraded.unwrap_or(defaults.degraded_intervals),
            upload_age_max: upload_age.map_or(defaults.upload_age_max, days),
            buffer_bytes_max: buffer_mb.map_or(defaults.buffer_bytes_max, |mib| mib << 20),
        })
    }
}
