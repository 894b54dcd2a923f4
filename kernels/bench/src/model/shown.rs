//! A measured model as people read it.

use ragstone_terminal::output;

use super::Report;
use crate::error::Result;

/// For people, or as JSON.
///
/// # Errors
/// Where standard output cannot be written.
pub fn print(report: &Report, json: bool) -> Result<()> {
    if json {
        return output::json(report);
    }
    let machine = &report.machine;
    output::line(&format!(
        "{}, {}; weights {} ({:.0} MiB), products {}, KV {}; loaded in {:.2} s\n",
        machine.threads(),
        machine.gpu.as_deref().unwrap_or(&machine.path),
        report.weights,
        report.weight_bytes as f64 / f64::from(1 << 20),
        report.compute,
        report.kv_dtype,
        report.load_seconds,
    ))?;
    output::line("                    ms (min .. max)                 tokens/s    GB/s")?;
    for prefill in &report.prefill {
        let rate = prefill.tokens_per_second.median;
        output::line(&format!("prefill {:<6} {} {rate:>12.1}", prefill.tokens, prefill.seconds.milliseconds()))?;
    }
    for decode in &report.decode {
        let (rate, gbps) = (decode.tokens_per_second.median, decode.gbps.median);
        let seconds = decode.seconds.milliseconds();
        output::line(&format!("decode@{:<6}  {seconds} {rate:>12.1} {gbps:>7.1}", decode.context))?;
    }
    for decode in &report.decode {
        let (Some(without), Some(launches)) = (&decode.without_graphs, decode.launches_per_token) else { continue };
        let (seconds, ratio) = (without.seconds.milliseconds(), without.ratio);
        output::line(&format!(
            "without graphs@{:<6} {seconds}  {:.2} times as long ({:.2} .. {:.2}); launches a token: {} instead of {launches}",
            decode.context, ratio.median, ratio.least, ratio.greatest, without.launches_per_token,
        ))?;
    }
    let profiled = report.prefill.iter().map(|prefill| (format!("prefill {}", prefill.tokens), &prefill.parts));
    let profiled =
        profiled.chain(report.decode.iter().map(|decode| (format!("decode@{}", decode.context), &decode.parts)));
    let profiled: Vec<_> = profiled.filter(|(_, parts)| !parts.is_empty()).collect();
    let Some((_, first)) = profiled.first() else { return Ok(()) };
    let names: String = first.iter().map(|part| format!("{:>13}", part.part)).collect();
    output::line(&format!("\nshare of the time  {names}"))?;
    for (case, parts) in profiled {
        let shares: String = parts.iter().map(|part| format!("{:>11.1} %", part.share * 100.0)).collect();
        output::line(&format!("{case:<18} {shares}"))?;
    }
    Ok(())
}
