"""Node tables of erf and tanh for look-ups in registers (16 doubles, 32 floats).

A function is expanded at nodes c: f(c + t) = f(c) + t + t p(t), one row of a table per
coefficient, one column per node. Nodes are multiples of a step, moved a little so that f(c) is
almost exactly a number of the kind (Gal and Bachelis, ACM TOMS 17, 1991); node 0 is 0. The step
is chosen so that an argument clamped at the end never rounds to a node past the last one.

One structure, `NodeTable`. The expansion is minimax (Remez) between nodes. Start at `ERF`.
"""

from __future__ import annotations

from typing import NamedTuple

from symgrad.codegen.vmath.notation import hexes


class NodeTable(NamedTuple):
    """`rows[0]` are values at the nodes; the others coefficients of p, lowest first."""

    step: float
    last: float
    nodes: tuple[float, ...]
    rows: tuple[tuple[float, ...], ...]


_ERF_DOUBLE = NodeTable(
    step=0.3883495145631068,
    last=6.0,
    nodes=hexes(
        "0x0p+0 0x1.8f24p-2 0x1.8d84p-1 0x1.29bfp+0 0x1.8da1p+0 0x1.f08dp+0 0x1.2a638p+1"
        " 0x1.5be98p+1 0x1.8d71p+1 0x1.bfa58p+1 0x1.f10f8p+1 0x1.117a4p+2 0x1.2a4c4p+2"
        " 0x1.4328p+2 0x1.5bd14p+2 0x1.74ab4p+2"
    ),
    rows=(
        hexes(
            "0x0p+0 0x1.ac9367a09461fp-2 0x1.74a12a2a75285p-1 0x1.cccc2b894df5fp-1"
            " 0x1.f1a3a72432102p-1 0x1.fce238fa58192p-1 0x1.ff7fcd6d7908cp-1"
            " 0x1.fff0211cdd17fp-1 0x1.fffe85a98c9e6p-1 0x1.ffffe68f7dd25p-1"
            " 0x1.fffffeaa3bb1cp-1 0x1.fffffff3029c1p-1 0x1.ffffffffa0432p-1"
            " 0x1.fffffffffdf5bp-1 0x1.fffffffffff77p-1 0x1.ffffffffffffep-1"
        ),
        hexes(
            "0x1.06eba8214db69p-3 -0x1.f6817e21e959ep-6 -0x1.87a38cab587d4p-2"
            " -0x1.6aa34e64fda8cp-1 -0x1.cc3e381ebe44bp-1 -0x1.f29417a3d7531p-1"
            " -0x1.fd7a890fc2c0bp-1 -0x1.ffa47e32a2133p-1 -0x1.fff662e359461p-1"
            " -0x1.ffff474a3da86p-1 -0x1.fffff54eaf643p-1 -0x1.ffffff8e1826cp-1"
            " -0x1.fffffffc6fdcbp-1 -0x1.ffffffffeb01ap-1 -0x1.ffffffffffa16p-1"
            " -0x1.fffffffffffedp-1"
        ),
        hexes(
            "0x0p+0 -0x1.82e61608cda22p-2 -0x1.eaf6b742dfb61p-2 -0x1.5b6ff46ab0bbfp-2"
            " -0x1.41903f5c1e672p-3 -0x1.a0876a189916dp-5 -0x1.782ba9b0d5bdcp-7"
            " -0x1.f171a10c848bcp-10 -0x1.dd9c79067d901p-13 -0x1.42fcc7d82b8b2p-16"
            " -0x1.4c2e33addf862p-20 -0x1.e6ba8e92c1d5dp-25 -0x1.09b631be4c5dap-29"
            " -0x1.a803b797e9574p-35 -0x1.010bf292b49ap-40 -0x1.bd5f681b01905p-47"
        ),
        hexes(
            "-0x1.812746b0379dcp-2 -0x1.cca6ee82fb09dp-3 0x1.5aae258c1fb4cp-5"
            " 0x1.53a48ca580682p-3 0x1.07f79424cb13ep-3 0x1.d30858d7e1d47p-5"
            " 0x1.096910fda6102p-6 0x1.a4313a80eecadp-9 0x1.d4b15a190ddadp-12"
            " 0x1.6920fa0c7683fp-15 0x1.9fba1e9b622aap-19 0x1.512598fb65917p-23"
            " 0x1.93514515d7ff7p-28 0x1.5dd52b5282a01p-33 0x1.c9c5074bf4fd4p-39"
            " 0x1.a9db598d1908cp-45"
        ),
        hexes(
            "0x0p+0 0x1.5bb5d80229b61p-3 0x1.25a9f7b6e5385p-3 0x1.10e286753e243p-6"
            " -0x1.87419267a0f18p-5 -0x1.3a18e5d56732dp-5 -0x1.ed5308ffc9db3p-7"
            " -0x1.e825b7b18a302p-9 -0x1.4405eb6af0056p-11 -0x1.20d29fba06ab1p-14"
            " -0x1.77ea3c49c42ddp-18 -0x1.53e252679d453p-22 -0x1.bfd0373b1cc57p-27"
            " -0x1.a7efcca72a2aep-32 -0x1.2c4449d2c83ecp-37 -0x1.2cb07ce5bbd7dp-43"
        ),
        hexes(
            "0x1.ce2f21a03e7fep-4 0x1.4fee30eae8509p-5 -0x1.d4cdd8b24c962p-5"
            " -0x1.d70c56f9e6feep-5 -0x1.26b32d0a87995p-7 0x1.9e57f70375eb5p-7"
            " 0x1.2cc2e134654fp-7 0x1.94ab205d13111p-9 0x1.4c225ca414797p-11"
            " 0x1.5ddd0b57c8a5ap-14 0x1.04c70b31b8c15p-17 0x1.092f4eb08d663p-21"
            " 0x1.8331b6142c304p-26 0x1.91e173c5037aap-31 0x1.3533cf0724547p-36"
            " 0x1.4e35dc15c33c3p-42"
        ),
        hexes(
            "0x0p+0 -0x1.9e89b940f86fdp-5 -0x1.7fd4ae53fb22ep-6 0x1.2478e6c0b99aep-6"
            " 0x1.1cf5b489cbbedp-6 0x1.0c92700a121dap-9 -0x1.989e3a6456113p-9"
            " -0x1.d8ee5ca29b81ep-10 -0x1.015a9e0b48387p-11 -0x1.4ad521694c88dp-14"
            " -0x1.1f6f93f39cc3dp-17 -0x1.4c66bcb004551p-21 -0x1.0eecc7fb2a9e6p-25"
            " -0x1.35f0fb09ea2cep-30 -0x1.040cc1394cb49p-35 -0x1.304d7468bf259p-41"
        ),
        hexes(
            "-0x1.b82ce30839395p-6 -0x1.0e8a1b84881a7p-8 0x1.346269a46d1a8p-6"
            " 0x1.fc793f0996a66p-8 -0x1.6d81d1a101c19p-8 -0x1.0fb9d678ccbep-8"
            " -0x1.c8fc399467bd2p-14 0x1.5d25ecf7d4a83p-11 0x1.2a7641aafe55bp-12"
            " 0x1.ee8a93e4f102cp-15 0x1.00d2b76907b1ep-17 0x1.56aefa3021417p-21"
            " 0x1.3ab14e4b73882p-25 0x1.8f4c2a66e5bep-30 0x1.6efbe5fad0ed1p-35"
            " 0x1.d27b18a48d8cbp-41"
        ),
        hexes(
            "0x0p+0 0x1.707ff49098ad9p-7 0x1.6646826b20472p-10 -0x1.8e89c7e7eabbdp-8"
            " -0x1.994915ced37d9p-10 0x1.9bf388df5ae38p-10 0x1.7f88eed4edcc1p-11"
            " -0x1.148917176497p-14 -0x1.e58ca2ef72189p-14 -0x1.2298c910fd74p-15"
            " -0x1.7778d1058143ap-18 -0x1.26d9a7be8a73ep-21 -0x1.34a1f65c099a9p-25"
            " -0x1.b5a10286d26c8p-30 -0x1.bae1dbf5406a3p-35 -0x1.32eef1e9903a2p-40"
        ),
        hexes(
            "0x1.565bc11f2b3d2p-8 -0x1.67766dc5647cap-13 -0x1.fe9db5d254f38p-9"
            " 0x1.08b85d42c0142p-14 0x1.a98dd46aba544p-10 0x1.0e388de6a9349p-13"
            " -0x1.7727c5bddf571p-12 -0x1.78168b4f3d596p-14 0x1.9b92c1d648066p-16"
            " 0x1.035c742f5ee84p-16 0x1.c046f3814858bp-19 0x1.aab2e3de7cc6dp-22"
            " 0x1.027a91a66a7bp-25 0x1.9d69dfab3a8a9p-30 0x1.cf85b03aea91ep-35"
            " 0x1.5fd58ccaa5982p-40"
        ),
        hexes(
            "0x0p+0 -0x1.044af27bd9489p-9 0x1.7b88126c95e05p-12 0x1.178e6695ffac7p-10"
            " -0x1.db7b9a5bfc1e3p-13 -0x1.595b4ad3f2efbp-12 0x1.3454ef916f3d2p-15"
            " 0x1.fb3765d383692p-15 0x1.66c47a69f444dp-18 -0x1.385858f96faccp-18"
            " -0x1.ad5036a3cd671p-20 -0x1.03d4164c4df6bp-22 -0x1.7429259aabc57p-26"
            " -0x1.53b009452668p-30 -0x1.a912e7640230ep-35 -0x1.632a56717e6eap-40"
        ),
        hexes(
            "-0x1.c01f82e571eccp-11 0x1.61da631b8cdfap-13 0x1.33688ead8ddc9p-11"
            " -0x1.ee76748b1b35fp-13 -0x1.a6d6ccb83433bp-13 0x1.8eaf7410f75a6p-14"
            " 0x1.687e183618517p-15 -0x1.fe4d137d85c0ap-17 -0x1.d8024e68aeb0dp-18"
            " 0x1.cd8e2e47a4c19p-22 0x1.38dc219273c12p-21 0x1.08178a100a788p-23"
            " 0x1.cd7a75835181dp-27 0x1.e81d48be4b453p-31 0x1.57c7640f7ebccp-35"
            " 0x1.3dd69ca3dbe8dp-40"
        ),
        hexes(
            "0x0p+0 0x1.2ff9a74f7a93dp-12 -0x1.1213cb1e5cf6bp-13 -0x1.e5f98f2d78a8dp-14"
            " 0x1.6af3afb79f731p-14 0x1.41b678dda28e4p-16 -0x1.75816c569cccfp-16"
            " -0x1.3109629646a31p-19 0x1.7bc411967f686p-19 0x1.e846301143013p-22"
            " -0x1.21808df89df6bp-23 -0x1.b56776acb2377p-25 -0x1.eb89bb77a88acp-28"
            " -0x1.33fb603e198a9p-31 -0x1.ee52a51807829p-36 -0x1.fdd4e64868122p-41"
        ),
        hexes(
            "0x1.f141937115d1ep-14 -0x1.51291e1cff53bp-15 -0x1.15e280e412b51p-14"
            " 0x1.bbb12e9e36814p-15 0x1.0c7ac0fe74917p-17 -0x1.3ce5d90ae9138p-16"
            " 0x1.e017ddde7a5a4p-20 0x1.9e385aa2ae5d4p-19 -0x1.6db636ebfe348p-22"
            " -0x1.4888107ed8f5p-22 -0x1.9e6d40b355b85p-29 0x1.1487d5a7e7f9ap-26"
            " 0x1.c397a7a785e64p-29 0x1.5eea136617574p-32 0x1.49fcd4386dd7p-36"
            " 0x1.84205c9cc717bp-41"
        ),
        hexes(
            "0x0p+0 -0x1.28d4f5a155d4cp-15 0x1.95c2a6a39d8p-16 0x1.aadbc6525ddd6p-18"
            " -0x1.b2e4e11c2108cp-17 0x1.6626b081502ap-19 0x1.3420755f9d6d6p-19"
            " -0x1.daac78072801bp-21 -0x1.d2aaf22c0e6b8p-23 0x1.882f9553fe5f8p-24"
            " 0x1.46fddd644d258p-26 -0x1.a4d5ed233de2cp-29 -0x1.4f4854a79984cp-30"
            " -0x1.504d5647d6fd6p-33 -0x1.7513aafbf4fdap-37 -0x1.f27be912e86cbp-42"
        ),
    ),
)
_ERF_FLOAT = NodeTable(
    step=0.1271860095389507,
    last=4.0,
    nodes=hexes(
        "0x0p+0 0x1.17p-3 0x1.138p-2 0x1.9e8p-2 0x1.1p-1 0x1.464p-1 0x1.7a8p-1 0x1.cd8p-1"
        " 0x1.054p+0 0x1.222p+0 0x1.424p+0 0x1.61p+0 0x1.8c2p+0 0x1.a8p+0 0x1.c9cp+0"
        " 0x1.e4ep+0 0x1.05ep+1 0x1.121p+1 0x1.26dp+1 0x1.351p+1 0x1.433p+1 0x1.57p+1"
        " 0x1.63dp+1 0x1.749p+1 0x1.88p+1 0x1.9ap+1 0x1.a47p+1 0x1.ba8p+1 0x1.ca1p+1"
        " 0x1.d88p+1 0x1.ea9p+1 0x1.fbcp+1"
    ),
    rows=(
        hexes(
            "0x0p+0 0x1.38e18cp-3 0x1.2f8726p-2 0x1.bb6054p-2 0x1.1855a6p-1 0x1.43d5b2p-1"
            " 0x1.688c0cp-1 0x1.985e32p-1 0x1.b3bb9p-1 0x1.c831e2p-1 0x1.d993dcp-1"
            " 0x1.e5cd4ep-1 0x1.f1551ap-1 0x1.f62fe8p-1 0x1.fa239p-1 0x1.fc36ecp-1"
            " 0x1.fe0c64p-1 0x1.febd52p-1 0x1.ff6c8cp-1 0x1.ffac4ep-1 0x1.ffd158p-1"
            " 0x1.ffec3ap-1 0x1.fff4ecp-1 0x1.fffaf4p-1 0x1.fffe0ep-1 0x1.ffff3ap-1"
            " 0x1.ffff8ep-1 0x1.ffffdep-1 0x1.fffff2p-1 0x1.fffffap-1 0x1.fffffep-1 0x1p+0"
        ),
        hexes(
            "0x1.06eba8p-3 0x1.b8db48p-4 0x1.963a7ap-5 -0x1.595464p-5 -0x1.31540cp-3"
            " -0x1.fc42bap-3 -0x1.63058p-2 -0x1.ff3fap-2 -0x1.341776p-1 -0x1.6011ecp-1"
            " -0x1.898accp-1 -0x1.a9b586p-1 -0x1.cb4aaap-1 -0x1.dad048p-1 -0x1.e862b8p-1"
            " -0x1.f0039cp-1 -0x1.f7363ap-1 -0x1.fa19ecp-1 -0x1.fd215p-1 -0x1.fe4d7cp-1"
            " -0x1.ff0412p-1 -0x1.ff8f6ep-1 -0x1.ffbed4p-1 -0x1.ffe10cp-1 -0x1.fff382p-1"
            " -0x1.fffad2p-1 -0x1.fffcf4p-1 -0x1.ffff0cp-1 -0x1.ffff98p-1 -0x1.ffffd2p-1"
            " -0x1.fffffp-1 -0x1.fffffap-1"
        ),
        hexes(
            "0x0p+0 -0x1.35077p-3 -0x1.21296p-2 -0x1.8d06e6p-2 -0x1.cee5acp-2 -0x1.ea90fep-2"
            " -0x1.ee8c2ep-2 -0x1.ce2d66p-2 -0x1.a02e1ep-2 -0x1.6a7f62p-2 -0x1.2a3a1p-2"
            " -0x1.dbf2c8p-3 -0x1.463c5ep-3 -0x1.ecb83cp-4 -0x1.51cbd6p-4 -0x1.e472bcp-5"
            " -0x1.1facdcp-5 -0x1.94281cp-6 -0x1.a70a04p-7 -0x1.064a0ap-7 -0x1.3e0cbap-8"
            " -0x1.2da5c8p-9 -0x1.6a5894p-10 -0x1.685bfcp-11 -0x1.322486p-12 -0x1.09558ep-13"
            " -0x1.409d88p-14 -0x1.a646bap-16 -0x1.73a782p-17 -0x1.51b158p-18 -0x1.e508d4p-20"
            " -0x1.60513cp-21"
        ),
        hexes(
            "-0x1.81270ap-2 -0x1.6c097ep-2 -0x1.3264e6p-2 -0x1.b79baap-3 -0x1.fa0306p-4"
            " -0x1.81d538p-5 0x1.4bd014p-6 0x1.ab3cf6p-4 0x1.26684ep-3 0x1.4e8474p-3"
            " 0x1.56986ep-3 0x1.427898p-3 0x1.0a427ap-3 0x1.bce1dcp-4 0x1.53b3b8p-4"
            " 0x1.073a26p-4 0x1.598022p-5 0x1.00fd38p-5 0x1.262c2cp-6 0x1.81ff3ep-7"
            " 0x1.ed5f6p-8 0x1.f55a7ap-9 0x1.3a04c8p-9 0x1.48fc12p-10 0x1.27d9dp-11"
            " 0x1.0d7b7cp-12 0x1.4ec0fp-13 0x1.d237bap-15 0x1.a9fddp-16 0x1.903beap-17"
            " 0x1.2b3c08p-18 0x1.c2fcfep-20"
        ),
        hexes(
            "0x0p+0 0x1.31344cp-4 0x1.1334ecp-3 0x1.61a82cp-3 0x1.77cd34p-3 0x1.65c666p-3"
            " 0x1.3a5dcep-3 0x1.a7afap-4 0x1.fcec2ep-5 0x1.a0e2c4p-6 -0x1.0cf36cp-7"
            " -0x1.fd6de4p-6 -0x1.85046cp-5 -0x1.985aaap-5 -0x1.7e3798p-5 -0x1.51145ap-5"
            " -0x1.018984p-5 -0x1.9f8606p-6 -0x1.0c443p-6 -0x1.7a939p-7 -0x1.026c38p-7"
            " -0x1.1d9898p-8 -0x1.781104p-9 -0x1.a2ba0ap-10 -0x1.920214p-11 -0x1.83621ep-12"
            " -0x1.f05c36p-13 -0x1.6fc2c2p-14 -0x1.5e2ap-15 -0x1.553d2ap-16 -0x1.0a8482p-17"
            " -0x1.a1ece2p-19"
        ),
        hexes(
            "0x1.cce866p-4 0x1.a2e9f6p-4 0x1.33a096p-4 0x1.2a2cp-5 -0x1.deaf94p-10"
            " -0x1.eecf2ep-6 -0x1.a3979ep-5 -0x1.17ed24p-4 -0x1.17b8acp-4 -0x1.eee3f4p-5"
            " -0x1.78e628p-5 -0x1.ed4984p-6 -0x1.3d5b54p-7 0x1.7481aep-12 0x1.13a58cp-7"
            " 0x1.83ace2p-7 0x1.ab2f82p-7 0x1.929adp-7 0x1.3dab8p-7 0x1.f3ee46p-8"
            " 0x1.768074p-8 0x1.cf0c18p-9 0x1.450d88p-9 0x1.868c94p-10 0x1.960566p-11"
            " 0x1.a260aap-12 0x1.15fa98p-12 0x1.baaacp-14 0x1.b9e3d2p-15 0x1.c0ee1p-16"
            " 0x1.70638ep-17 0x1.2e01a6p-18"
        ),
        hexes(
            "0x0p+0 -0x1.9089dap-6 -0x1.5bc1b4p-5 -0x1.a04462p-5 -0x1.8d03b2p-5 -0x1.480ap-5"
            " -0x1.ce4418p-6 -0x1.cb7fbap-8 0x1.b48daap-8 0x1.062b12p-6 0x1.5f34d2p-6"
            " 0x1.697db4p-6 0x1.20537p-6 0x1.ab868ap-7 0x1.e4a326p-8 0x1.c887bep-9"
            " -0x1.0c8838p-11 -0x1.06b022p-9 -0x1.922e62p-9 -0x1.8fa9p-9 -0x1.617d8ep-9"
            " -0x1.044398p-9 -0x1.90245ap-10 -0x1.0a0fdp-10 -0x1.31cc74p-11 -0x1.55a3f6p-12"
            " -0x1.d9d0c8p-13 -0x1.99ad7ep-14 -0x1.af222p-15 -0x1.ca7f2ap-16 -0x1.8ce536p-17"
            " -0x1.5535b4p-18"
        ),
    ),
)
ERF = {"double": _ERF_DOUBLE, "float": _ERF_FLOAT}
TANH_FLOAT = NodeTable(
    step=0.302066772655008,
    last=9.5,
    nodes=hexes(
        "0x0p+0 0x1.2fp-2 0x1.32p-1 0x1.c9p-1 0x1.34ap+0 0x1.83cp+0 0x1.d2cp+0 0x1.0c1p+1"
        " 0x1.376p+1 0x1.5bep+1 0x1.833p+1 0x1.ab3p+1 0x1.d1ap+1 0x1.f73p+1 0x1.103p+2"
        " 0x1.2188p+2 0x1.34cp+2 0x1.47bp+2 0x1.5bcp+2 0x1.70a8p+2 0x1.81c8p+2 0x1.94bp+2"
        " 0x1.aa48p+2 0x1.bcap+2 0x1.cfd8p+2 0x1.e438p+2 0x1.f708p+2 0x1.0434p+3"
        " 0x1.0dep+3 0x1.1788p+3 0x1.22c4p+3 0x1.2c6cp+3"
    ),
    rows=(
        hexes(
            "0x0p+0 0x1.2674bap-2 0x1.121d4ap-1 0x1.6ce266p-1 0x1.abb24ap-1 0x1.d0c5fcp-1"
            " 0x1.e5f864p-1 0x1.f0b2dcp-1 0x1.f82a54p-1 0x1.fb8e5p-1 0x1.fd973cp-1"
            " 0x1.feb582p-1 0x1.ff4aap-1 0x1.ff9b1ep-1 0x1.ffcafcp-1 0x1.ffe12ap-1"
            " 0x1.ffef16p-1 0x1.fff6a4p-1 0x1.fffbp-1 0x1.fffd66p-1 0x1.fffe7ap-1"
            " 0x1.ffff28p-1 0x1.ffff92p-1 0x1.ffffc2p-1 0x1.ffffdep-1 0x1.ffffeep-1"
            " 0x1.fffff6p-1 0x1.fffffap-1 0x1.fffffcp-1 0x1.fffffep-1 0x1p+0 0x1p+0"
        ),
        hexes(
            "-0x1.490a64p-33 -0x1.52b05p-4 -0x1.2582b6p-2 -0x1.040a4ep-1 -0x1.65462p-1"
            " -0x1.a5e726p-1 -0x1.cd438ep-1 -0x1.e1dac8p-1 -0x1.f07358p-1 -0x1.f7268p-1"
            " -0x1.fb315ep-1 -0x1.fd6bdap-1 -0x1.fe958p-1 -0x1.ff365p-1 -0x1.ff95fep-1"
            " -0x1.ffc256p-1 -0x1.ffde2cp-1 -0x1.ffed48p-1 -0x1.fff6p-1 -0x1.fffaccp-1"
            " -0x1.fffcf4p-1 -0x1.fffe5p-1 -0x1.ffff24p-1 -0x1.ffff84p-1 -0x1.ffffbcp-1"
            " -0x1.ffffdcp-1 -0x1.ffffecp-1 -0x1.fffff4p-1 -0x1.fffffap-1 -0x1.fffffcp-1"
            " -0x1.fffffep-1 -0x1p+0"
        ),
        hexes(
            "0x0p+0 -0x1.0e1b9ep-2 -0x1.8716d8p-2 -0x1.672032p-2 -0x1.027fccp-2"
            " -0x1.472574p-3 -0x1.8140f8p-4 -0x1.d3e956p-5 -0x1.e9f7b4p-6 -0x1.18bacp-6"
            " -0x1.3235a4p-7 -0x1.493e46p-8 -0x1.69ff5p-9 -0x1.9310c6p-10 -0x1.a7de3cp-11"
            " -0x1.ed3356p-12 -0x1.0e92b8p-12 -0x1.2b77d8p-13 -0x1.3ffbb4p-14 -0x1.4cff1cp-15"
            " -0x1.85ff44p-16 -0x1.b005a6p-17 -0x1.b805b6p-18 -0x1.f013fcp-19 -0x1.10182ap-19"
            " -0x1.1fe3d6p-20 -0x1.3fd83cp-21 -0x1.73ac42p-22 -0x1.9620dcp-23 -0x1.bc3628p-24"
            " -0x1.b83b26p-25 -0x1.e18318p-26"
        ),
        hexes(
            "-0x1.55554ap-2 -0x1.d6e08p-3 -0x1.10ec2cp-5 0x1.5fda32p-4 0x1.c3240ep-4"
            " 0x1.61ae9ep-4 0x1.ccbe3p-5 0x1.252704p-5 0x1.3c9c0ap-6 0x1.6fcb3cp-7"
            " 0x1.946eb8p-8 0x1.b4c69cp-9 0x1.e153acp-10 0x1.0c4bfp-10 0x1.1a59a2p-11"
            " 0x1.48a548p-12 0x1.68abcap-13 0x1.8f3bdap-14 0x1.aa9c9ap-15 0x1.bbfa4cp-16"
            " 0x1.03fdf6p-16 0x1.2002dp-17 0x1.2558a6p-18 0x1.4ab7aep-19 0x1.6acab2p-20"
            " 0x1.7fda58p-21 0x1.aa7594p-22 0x1.ef904ep-23 0x1.0ec09p-23 0x1.282418p-24"
            " 0x1.257cc4p-25 0x1.41020ep-26"
        ),
        hexes(
            "0x0p+0 0x1.3b67cap-3 0x1.2942b6p-3 0x1.c841b2p-5 -0x1.01796p-7 -0x1.9bdd3cp-6"
            " -0x1.68fb0cp-6 -0x1.00d90cp-6 -0x1.28e306p-7 -0x1.62e5a4p-8 -0x1.8cc706p-9"
            " -0x1.b05ac6p-10 -0x1.dea76ap-11 -0x1.0b7798p-11 -0x1.19e3dcp-12 -0x1.48552ap-13"
            " -0x1.687b18p-14 -0x1.8f1d84p-15 -0x1.aa8ab6p-16 -0x1.bbeffep-17 -0x1.03fa1ep-17"
            " -0x1.200014p-18 -0x1.2556dp-19 -0x1.4ab618p-20 -0x1.6ac946p-21 -0x1.7fd906p-22"
            " -0x1.aa7436p-23 -0x1.ef8ec8p-24 -0x1.0ebfcp-24 -0x1.28233ap-25 -0x1.257be8p-26"
            " -0x1.41012p-27"
        ),
        hexes(
            "0x1.1103cap-3 0x1.b002dcp-5 -0x1.9fa518p-5 -0x1.d61892p-5 -0x1.7ff78ep-6"
            " -0x1.0d3b86p-9 0x1.1e251p-8 0x1.2cae76p-8 0x1.9d8a12p-9 0x1.07966p-9"
            " 0x1.3146bap-10 0x1.52d8ep-11 0x1.7aaa7p-12 0x1.a94ecp-13 0x1.c1909ep-14"
            " 0x1.062c38p-14 0x1.20169ap-15 0x1.3f1c84p-16 0x1.55218cp-17 0x1.63186ap-18"
            " 0x1.9fed38p-19 0x1.ccc772p-20 0x1.d55528p-21 0x1.089104p-21 0x1.223a64p-22"
            " 0x1.331414p-23 0x1.552ap-24 0x1.8c7298p-25 0x1.b13346p-26 0x1.d9d284p-27"
            " 0x1.d593ap-28 0x1.00ce06p-28"
        ),
        hexes(
            "0x0p+0 -0x1.212d32p-4 -0x1.e8d212p-6 0x1.c8efeap-7 0x1.0e0aa8p-6 0x1.bad072p-8"
            " 0x1.2ebf52p-10 -0x1.f2d83p-12 -0x1.87e63ep-11 -0x1.2a6d58p-11 -0x1.77dc14p-12"
            " -0x1.b291d4p-13 -0x1.ef729p-14 -0x1.192a22p-14 -0x1.2b0672p-15 -0x1.5dbf0ep-16"
            " -0x1.80fe64p-17 -0x1.aadb86p-18 -0x1.c88fdp-19 -0x1.db64f2p-20 -0x1.167462p-20"
            " -0x1.34823cp-21 -0x1.3a408p-22 -0x1.624d06p-23 -0x1.84abeep-24 -0x1.9b3d9ep-25"
            " -0x1.c8e3ep-26 -0x1.0976b8p-26 -0x1.2212ecp-27 -0x1.3d4664p-28 -0x1.3a6ea2p-29"
            " -0x1.57eabep-30"
        ),
        hexes(
            "-0x1.af43d4p-5 -0x1.0ea8dep-8 0x1.eafa52p-6 0x1.404d76p-7 -0x1.0d213cp-8"
            " -0x1.f6bfe8p-9 -0x1.844a78p-10 -0x1.95b6ep-12 0x1.a90a72p-15 0x1.bd0d76p-14"
            " 0x1.64957ep-14 0x1.c5838ep-15 0x1.0dd562p-15 0x1.38eb4cp-16 0x1.50eb54p-17"
            " 0x1.8c46c2p-18 0x1.b5badap-19 0x1.e63cdp-20 0x1.04512cp-20 0x1.0f370ep-21"
            " 0x1.3dcddcp-22 0x1.602a0ap-23 0x1.66c1b6p-24 0x1.947efcp-25 0x1.bbbf84p-26"
            " 0x1.d585c8p-27 0x1.04d2a2p-27 0x1.2f16ep-28 0x1.4b3042p-29 0x1.6a3ed8p-30"
            " 0x1.670004p-31 0x1.88aa0ap-32"
        ),
    ),
)
