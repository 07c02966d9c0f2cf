//! The door as the one who spends a budget in common with other replicas.

use std::sync::Arc;

use crate::admission::Share;
use crate::budget::{Budget, BudgetError, Settings, Spender, Wanted};
use crate::door::Door;
use crate::drain::Tasks;
use crate::telemetry::metrics::Metrics;

/// Takes part in the budget of `settings`, where there are any, until the drain.
pub(super) async fn join(
    settings: Option<&Settings>,
    door: &Arc<Door>,
    metrics: &Arc<Metrics>,
    tasks: &Tasks,
) -> Result<(), BudgetError> {
    let Some(settings) = settings else {
        return Ok(());
    };
    let spender = Arc::new(AtTheDoor(Arc::clone(door)));
    let mut budget = Budget::new(settings, spender, Arc::clone(metrics))?;
    budget.join().await;
    let until = tasks.clone();
    tasks.spawn(async move { budget.keep(until.draining()).await });
    Ok(())
}

struct AtTheDoor(Arc<Door>);

impl Spender for AtTheDoor {
    fn wanted(&self) -> Wanted {
        let snapshot = self.0.snapshot();
        Wanted {
            tokens: snapshot.wanted,
            held: snapshot.held,
            found: snapshot.found,
        }
    }

    fn share(&self, share: Share) {
        self.0.set_share(share);
    }
}
