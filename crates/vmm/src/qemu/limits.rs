//! What a running QEMU may use of its host, beside its size.

use std::io;

use pando_sys::process;
use serde_json::json;

use super::Qemu;
use crate::error::VmmError;
use crate::vmm::Vmm as _;

/// The two disks of a VM, by the names of their devices. They share one throttle.
const DISK_DEVICES: [&str; 2] = ["root-device", "disk-device"];

/// Name of that throttle.
const THROTTLE: &str = "disks";

/// What the disks of a VM may do; `None` is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskRates {
    /// Bytes that are read and written, a second.
    pub bytes_per_second: Option<u64>,
    /// Requests, a second.
    pub requests_per_second: Option<u64>,
}

impl Qemu {
    /// Limits what both disks do together, from now on. Only for a VM that has its devices.
    ///
    /// # Errors
    /// QEMU refuses, or has ended.
    pub async fn limit_disk_rates(&self, rates: &DiskRates) -> Result<(), VmmError> {
        for device in DISK_DEVICES {
            let arguments = json!({
                "id": device,
                "group": THROTTLE,
                "bps": rates.bytes_per_second.unwrap_or(0),
                "bps_rd": 0,
                "bps_wr": 0,
                "iops": rates.requests_per_second.unwrap_or(0),
                "iops_rd": 0,
                "iops_wr": 0,
            });
            self.qmp.execute("block_set_io_throttle", arguments).await?;
        }
        Ok(())
    }

    /// Has no file that QEMU writes grow beyond `bytes`, for good. What goes beyond fails,
    /// and the guest is told of a disk that cannot be written.
    ///
    /// # Errors
    /// QEMU has ended.
    pub fn limit_file_bytes(&self, bytes: u64) -> io::Result<()> {
        process::limit_file_bytes(self.pid(), bytes)
    }

    /// Gives QEMU's threads this priority, from 0 to [`process::MAX_NICE`].
    ///
    /// # Errors
    /// QEMU has ended.
    pub fn be_nice(&self, nice: i32) -> io::Result<()> {
        process::be_nice(self.pid(), nice)
    }
}
