//! A web site, or a feed, that answers.

use url::Url;

use super::client::{Answer, Client, MOST_REDIRECTS, Page};
use super::crawl::Crawl;
use super::robots::Robots;
use super::scope::Scope;
use super::{Fetched, Progress, Wanted, refused, unreachable};
use ragstone_env::Result;

/// One whose first page came.
pub struct Site {
    pub(super) client: Client,
    pub(super) robots: Robots,
    pub(super) scope: Scope,
    pub(super) first: Page,
}

impl Site {
    /// Asks for the page that was named; where that leads elsewhere, the site is the one that it leads to.
    pub(super) async fn open(named: &Url) -> Result<Self> {
        let cannot = |why: &str| unreachable(format!("cannot fetch {named}: {why}"));
        let mut client = Client::of(named)?;
        let mut url = named.clone();
        for _ in 0..MOST_REDIRECTS {
            let robots = client.robots(&url).await.map_err(|why| cannot(&why))?;
            if !robots.allow(&url) {
                return Err(refused(format!("cannot fetch {url}: the site's robots.txt forbids it")));
            }
            client.spare(robots.pause());
            match client.ask(&url, None).await.map_err(|why| cannot(&why))? {
                Answer::Page(first) => return Ok(Self { client, robots, scope: Scope::of(&first.url), first: *first }),
                Answer::Elsewhere { to, .. } => url = to,
                Answer::Gone => return Err(refused(format!("cannot fetch {url}: there is no such page (HTTP 404)"))),
                Answer::Not(why) if Answer::is_refusal(&why) => {
                    return Err(refused(format!("cannot fetch {url}: its server refuses it ({why})")));
                }
                Answer::Not(why) | Answer::Later(why) => return Err(cannot(&why)),
                Answer::Unchanged => return Err(cannot("its server answered what was not asked")),
            }
        }
        Err(refused(format!("cannot fetch {named}: it leads from one address to the next, {MOST_REDIRECTS} times")))
    }

    pub(super) async fn fetch(self, wanted: Wanted<'_>, told: &(dyn Fn(Progress) + Sync)) -> Result<Fetched> {
        Crawl::run(self, wanted, told).await
    }
}
