//! TLS on the public listener (rustls): a certificate chain and its key from two files, which are read again when they change; and, where
//! it is asked for, clients' certificates.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};

use crate::config::Surface;
use crate::error::{Error, ErrorKind, Result};

/// How often the files are looked at.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(5);

/// The certificate of a listener. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tls {
    files: Files,
    client_ca: Option<PathBuf>,
    provider: Arc<CryptoProvider>,
    served: Arc<Served>,
}

#[derive(Debug, Clone)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
}

/// What new connections are shown.
#[derive(Debug)]
struct Served(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Served {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

impl Tls {
    /// As configured; `None` where nothing is.
    ///
    /// # Errors
    /// `InvalidInput` where one of the two files is given alone, cannot be read, or is not the other's.
    pub fn of(surface: &Surface) -> Result<Option<Self>> {
        let Surface { tls_certificate, tls_key, tls_client_ca, .. } = surface;
        let (certificate, key) = match (tls_certificate, tls_key) {
            (Some(certificate), Some(key)) => (certificate.clone(), key.clone()),
            (None, None) if tls_client_ca.is_none() => return Ok(None),
            (None, _) => return Err(Error::invalid_input("TLS wants a certificate; set `tls_certificate`")),
            (_, None) => return Err(Error::invalid_input("TLS wants the key of `tls_certificate`; set `tls_key`")),
        };
        let files = Files { certificate, key };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let served = Arc::new(Served(RwLock::new(Arc::new(files.read(&provider)?))));
        Ok(Some(Self { files, client_ca: tls_client_ca.clone(), provider, served }))
    }

    /// For a listener.
    ///
    /// # Errors
    /// `InvalidInput` where the certificates of clients' authorities cannot be read.
    pub fn config(&self) -> Result<ServerConfig> {
        let builder = ServerConfig::builder_with_provider(self.provider.clone());
        let builder =
            builder.with_safe_default_protocol_versions().map_err(|error| Error::internal(error.to_string()))?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let refused = |error: String| bad_file("tls_client_ca", path, &error);
                let mut roots = RootCertStore::empty();
                for certificate in certificates("tls_client_ca", path)? {
                    roots.add(certificate).map_err(|error| refused(error.to_string()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), self.provider.clone());
                builder.with_client_cert_verifier(verifier.build().map_err(|error| refused(error.to_string()))?)
            }
        };
        Ok(builder.with_cert_resolver(self.served.clone()))
    }

    /// Takes new files as they come. What cannot be used is told once, and the certificate before it stays.
    pub async fn follow(self) {
        let mut seen = self.files.changed();
        loop {
            tokio::time::sleep(LOOKED_AT_EVERY).await;
            let changed = self.files.changed();
            if changed != seen {
                seen = changed;
                self.renew();
            }
        }
    }

    fn renew(&self) {
        match self.files.read(&self.provider) {
            Ok(read) => {
                *self.served.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(read);
                tracing::info!(certificate = %self.files.certificate.display(), "new connections are shown the new certificate");
            }
            Err(error) => tracing::warn!(%error, "the changed certificate cannot be used; the one before it stays"),
        }
    }
}

impl Files {
    fn read(&self, provider: &CryptoProvider) -> Result<CertifiedKey> {
        let chain = certificates("tls_certificate", &self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|error| bad_file("tls_key", &self.key, &format!("{error}; PEM is wanted")))?;
        CertifiedKey::from_der(chain, key, provider).map_err(|error| {
            bad_file("tls_key", &self.key, &format!("{error}; it must be the key of {}", self.certificate.display()))
        })
    }

    /// When each was changed last.
    fn changed(&self) -> [Option<SystemTime>; 2] {
        [&self.certificate, &self.key].map(|path| std::fs::metadata(path).and_then(|meta| meta.modified()).ok())
    }
}

/// The certificates of a file, of which there must be one.
fn certificates(setting: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let refused = |error: rustls::pki_types::pem::Error| bad_file(setting, path, &format!("{error}; PEM is wanted"));
    let read = CertificateDer::pem_file_iter(path).map_err(refused)?.collect::<Result<Vec<_>, _>>().map_err(refused)?;
    if read.is_empty() {
        return Err(bad_file(setting, path, "there is no certificate in it; PEM is wanted"));
    }
    Ok(read)
}

fn bad_file(setting: &str, path: &Path, why: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("`{setting}`: {} cannot be used: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CERTIFICATE: &str = include_str!("../../../../tests/tls/localhost.pem");
    const KEY: &str = include_str!("../../../../tests/tls/localhost.key");
    const OTHER: &str = include_str!("../../../../tests/tls/client.pem");

    fn surface(folder: &Path, certificate: &str, key: &str) -> Surface {
        let file = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            Some(path)
        };
        Surface { tls_certificate: file("chain.pem", certificate), tls_key: file("key.pem", key), ..Surface::default() }
    }

    #[test]
    fn certificate_and_key_belong_together() {
        let folder = tempfile::tempdir().unwrap();
        let of = |certificate, key| Tls::of(&surface(folder.path(), certificate, key));
        assert!(Tls::of(&Surface::default()).unwrap().is_none());
        assert!(of(CERTIFICATE, KEY).unwrap().unwrap().config().is_ok());
        for (certificate, key, told) in [
            (OTHER, KEY, "must be the key of"),
            ("", KEY, "no certificate in it"),
            (KEY, KEY, "no certificate in it"),
            (CERTIFICATE, "", "`tls_key`"),
            (CERTIFICATE, CERTIFICATE, "`tls_key`"),
            (&CERTIFICATE[..200], KEY, "`tls_certificate`"),
        ] {
            let error = of(certificate, key).unwrap_err();
            assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains(told), "{error}");
        }
        for (certificate, key) in [(true, false), (false, true)] {
            let whole = surface(folder.path(), CERTIFICATE, KEY);
            let half = Surface {
                tls_certificate: whole.tls_certificate.filter(|_| certificate),
                tls_key: whole.tls_key.filter(|_| key),
                ..Surface::default()
            };
            assert!(Tls::of(&half).unwrap_err().to_string().contains("set `tls_"));
        }
        let alone = Surface { tls_client_ca: Some("/nowhere".into()), ..Surface::default() };
        assert!(Tls::of(&alone).is_err(), "clients' certificates without TLS would be asked of nobody");
        let unknown = Surface { tls_client_ca: Some("/nowhere".into()), ..surface(folder.path(), CERTIFICATE, KEY) };
        let error = Tls::of(&unknown).unwrap().unwrap().config().unwrap_err().to_string();
        assert!(error.contains("`tls_client_ca`"), "{error}");
    }

    #[test]
    fn a_changed_certificate_is_taken_and_a_broken_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let surface = surface(folder.path(), CERTIFICATE, KEY);
        let tls = Tls::of(&surface).unwrap().unwrap();
        let shown = || tls.served.0.read().unwrap().clone();
        let first = shown();
        let chain = format!("{CERTIFICATE}{OTHER}");
        std::fs::write(surface.tls_certificate.as_ref().unwrap(), &chain).unwrap();
        tls.renew();
        assert_eq!((first.cert.len(), shown().cert.len()), (1, 2));
        std::fs::write(surface.tls_key.as_ref().unwrap(), "half a fi").unwrap();
        tls.renew();
        assert_eq!(shown().cert.len(), 2, "the one before it stays");
    }
}
