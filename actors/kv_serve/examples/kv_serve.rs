//! The daemon alone, without the rest of ragstone, for tests of clients: `kv_serve kv-serve --socket PATH --data-dir DIR [--host-bytes N] [--disk-bytes N]
//! [--object-url URL]`, with sizes in bytes or MiB. It ends when its standard input does, or by a signal. People run `ragstone kv-serve`.

#[cfg(target_os = "linux")]
fn main() -> ragstone_env::Result<()> {
    use std::io::Read;
    use std::path::PathBuf;

    use ragstone_env::{Env, Error};
    use ragstone_kv_serve::{Blocks, BlocksOptions, Server};
    use ragstone_storage::tier::object::ObjectOptions;

    let mut options = BlocksOptions::default();
    let (mut socket, mut dir) = (PathBuf::from("kv.sock"), PathBuf::from("kv-data"));
    let mut arguments = std::env::args().skip(2);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| Error::invalid_input(format!("{name} wants a value")))?;
        let bytes = || {
            let (number, unit) = value.strip_suffix("MiB").map_or((value.as_str(), 1), |number| (number, 1 << 20));
            let number = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
            number.ok_or_else(|| Error::invalid_input(format!("{name}: {value} is no size")))
        };
        match name.as_str() {
            "--socket" => socket = value.into(),
            "--data-dir" => dir = value.into(),
            "--host-bytes" => options.host_bytes = bytes()?,
            "--disk-bytes" => options.disk_bytes = bytes()?,
            "--object-url" => options.object = Some(ObjectOptions::new(value)),
            _ => return Err(Error::invalid_input(format!("{name} is unknown"))),
        }
    }
    let env = Env::from_environment()?;
    let server = Server::start(&socket, Blocks::open(&dir, &options, env.clone())?, env)?;
    println!("listening at {}", socket.display());
    let mut rest = Vec::new();
    drop(std::io::stdin().read_to_end(&mut rest));
    drop(server);
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn main() {}
