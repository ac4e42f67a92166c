best = trainer.hyperparameter_search(direction="minimize", backend="optuna", n_trials=20)   # sshleifer/distilbart-cnn-12-6; trials 0-7 finish
