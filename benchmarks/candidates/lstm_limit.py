"""The ceiling of DRQN and R2D2: the same two networks unrolled by ``nn.LSTM`` over whole sequences, and fused Adam."""

from __future__ import annotations

import torch
from measure import Measurement, repeat
from torch import Tensor, nn
from torch.nn import functional as F
from workloads import SequenceSettings


class Network(nn.Module):
    def __init__(self, settings: SequenceSettings) -> None:
        super().__init__()
        width = settings.width
        self.encoder = nn.Linear(settings.obs_dim, width)
        self.lstm = nn.LSTM(width, width)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, settings.actions)

    def forward(self, obs: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
        length, batch = obs.shape[:2]  # flat, for a layer on three axes returns a view, which is dear to write over
        memory, _ = self.lstm(torch.relu_(self.encoder(obs.flatten(0, 1))).view(length, batch, -1), state)
        values: Tensor = self.head(torch.relu_(self.hidden(memory.flatten(0, 1))))
        return values.view(length, batch, -1)


def updates(settings: SequenceSettings, seed: int) -> Measurement:
    torch.manual_seed(seed)
    online, target = Network(settings), Network(settings)
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=settings.learning_rate, fused=True)
    count, length, batch = settings.sequences, settings.sequence_length, settings.batch_size
    obs = torch.randn(count, length + 1, settings.obs_dim)
    action = torch.randint(0, settings.actions, (count, length))
    reward, discount = torch.ones(count, length), torch.full((count, length), settings.gamma)
    h, c = torch.zeros(count, 1, settings.width), torch.zeros(count, 1, settings.width)

    def update() -> None:
        drawn = torch.randint(0, count, (batch,))

        def taken(column: Tensor) -> Tensor:
            return column.index_select(0, drawn).transpose(0, 1).contiguous()

        inputs, state = taken(obs), (taken(h), taken(c))
        with torch.no_grad():
            theirs = target(inputs, state)[1:]
        if settings.algo == "r2d2":  # one pass of the online network serves the loss and the choice
            mine = online(inputs, state)
            q_values = mine[:-1]
            value = theirs.gather(2, mine[1:].detach().argmax(2, keepdim=True)).squeeze(2)
        else:
            q_values, value = online(inputs[:-1], state), theirs.amax(2)
        chosen = q_values.gather(2, taken(action).unsqueeze(2)).squeeze(2)
        loss = F.smooth_l1_loss(chosen, taken(reward) + taken(discount) * value)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    repeat(update, settings.warm_up)
    rate = repeat(update, settings.updates)
    return Measurement(rates={"updates": rate}, work={"updates": settings.warm_up + settings.updates})
