"""Settings that an agent does not have, and values of another type."""

from rl_training import DQN, PPO

DQN("CartPole-v1", learning_rate={"kind": "constant", "from": 1e-3}, hidden_sizes=[8], eval={"interval": 0})
PPO("CartPole-v1", clip_range=0.1, activation="relu").learn(5).predict([0.0])
DQN("CartPole-v1", learning_rat=1e-3)  # expect: call-arg
DQN("CartPole-v1", clip_range=0.1)  # expect: call-arg
DQN("CartPole-v1", gamma="high")  # expect: arg-type
PPO("CartPole-v1", activation="sine")  # expect: arg-type
