//! `ragstone bench parity`

use std::process::Command;

use ragstone_actors::models::language_model::Device;
use ragstone_bench::parity;
pub use ragstone_bench::parity::Args;
use ragstone_service::config::Config;

use super::{blocking, one_gpu};
use crate::error::{Error, Result};

/// Checks every kernel, and fails where one is off.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    let Device::Cuda(gpus) = &config.settings.device else {
        return Err(Error::invalid_input("this compares a GPU with the processor; add `--device cuda`"));
    };
    let ordinal = one_gpu(gpus)?;
    let again = move || {
        let program = std::env::current_exe();
        let program = program.map_err(|error| Error::internal(format!("this program is not found: {error}")))?;
        let mut command = Command::new(program);
        command.args(["bench", "parity", "--device", &format!("cuda:{ordinal}")]);
        Ok(command)
    };
    blocking(move || parity::run(ordinal, &args, again)).await
}
